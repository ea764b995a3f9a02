"""What the README and CONTRIBUTING say, done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from nnarena.cli import _guarded
from nnarena.cli.app import app
from nnarena.kernels import recurrence
from nnarena.nn import Recurrent

ROOT = Path(__file__).resolve().parents[1]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def test_the_model_in_ten_lines_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks("README.md", "python") if "class MyCell" in block)
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith("#")]) <= 10
    (tmp_path / "my_file.py").write_text(code)
    assert _guarded(["run", "-t", "digits", "-m", "lstm,my_file.py:MyCell", "--quick", "--jobs", "1"], debug=True) == 0


def test_the_task_of_contributing_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks("CONTRIBUTING.md", "python") if "class Parity" in block)
    (tmp_path / "parity.py").write_text(code)
    assert _guarded(["run", "-t", "parity.py:Parity", "-m", "gru", "--quick", "--jobs", "1"], debug=True) == 0


def test_the_cell_of_contributing_becomes_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (block for block in blocks("CONTRIBUTING.md", "python") if "class Leaky" in block)
    names = {"torch": torch, "nn": nn, "Tensor": torch.Tensor, "Recurrent": Recurrent}
    exec(code, names)
    torch.manual_seed(0)
    layer, x = names["Leaky"](3, 5), torch.randn(2, 4, 3)
    results = []
    for drive in ("eager", "fused"):
        layer.backend = drive
        output, _ = layer(x)
        results.append([output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))])
        if drive == "eager":
            monkeypatch.setattr(recurrence, "eager", lambda *given: pytest.fail("it must not run step by step"))
    for eager, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, eager, rtol=1e-4, atol=1e-5)


def test_every_kernel_file_is_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = text.partition("src/nnarena/kernels/\n")[2].partition("```")[0]
    room, folder, found = ROOT / "src/nnarena/kernels", "", set()
    for indent, name in re.findall(r"^( +)(\S+)", listed, re.MULTILINE):
        if name.endswith("/"):
            folder = name
        else:
            found.add(name if indent == "  " else folder + name)
    there = {path.relative_to(room).as_posix() for kind in ("*.py", "*.hpp") for path in room.rglob(kind)}
    assert found == {name for name in there if not name.endswith("__init__.py")}


def test_every_command_is_in_the_readme_and_every_one_there_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"nnarena ([a-z]+)", re.sub(r"import nnarena", "", text)))
    assert named <= set(app.commands) and set(app.commands) <= named
    flags = {option for command in app.commands.values() for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= flags


def test_every_file_that_is_linked_is_there() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "docs/results.md", "docs/look.md", "docs/diagnose.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / name).parent.joinpath(target).is_file(), f"{name} links to {target}"
