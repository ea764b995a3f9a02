"""`nnarena.run`, `nnarena.build` and what `import nnarena` costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import nnarena
from nnarena.core.errors import ArenaError

SMALL = {"samples": 640, "batch_size": 32, "epochs": 2, "quiet": True}


class Mean(nn.Module):
    """A dense layer on the mean of all steps."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(input_size, output_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x.mean(1))


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, nnarena; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(nnarena.__all__) <= set(dir(nnarena))


def test_run_takes_names_and_objects_and_returns_a_leaderboard(tmp_path: Path) -> None:
    class Local(Mean):
        """Defined inside a function, where no other process can find it."""

    result = nnarena.run(tasks="add[length=10]", models=["lstm", Mean, Local], seeds=2, out=tmp_path / "R", **SMALL)
    board = result.leaderboard()
    assert set(board["model"]) == {"lstm", "Mean", "Local"} and len(board) == 3
    same = board.set_index("model")
    assert same.loc["Mean", "mse"] == same.loc["Local", "mse"]
    assert {"mse", "mse std", "mse low", "mse high", "parameters"} <= set(board.columns)
    page = result.save_html(tmp_path / "page.html")
    assert "Local" in page.read_text()
    with pytest.raises(ArenaError, match="one process"):
        nnarena.run(tasks="add[length=10]", models=Local, seeds=2, jobs=2, out=tmp_path / "S", **SMALL)


def test_two_things_of_one_name_are_told_apart_by_the_person(tmp_path: Path) -> None:
    def another() -> type:
        class Net(Mean):
            """One of two."""

        return Net

    with pytest.raises(ArenaError, match="Two different things are called Net"):
        nnarena.run(tasks="add[length=10]", models=[another(), another()], out=tmp_path / "R", **SMALL)


def test_the_same_request_gets_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [nnarena.run(tasks="add[length=10]", models=["lstm"], seeds=n, jobs=1, **SMALL).folder for n in (1, 2)]
    assert folders[0] == folders[1] and folders[0].parts[0] == "runs"
    other = nnarena.run(tasks="add[length=10]", models=["lstm"], lr=0.1, jobs=1, **SMALL).folder
    assert other != folders[0]


def test_build_gives_the_published_competitor() -> None:
    model = nnarena.build("gru", task="walker")
    assert sum(param.numel() for param in model.parameters()) == 25_137
    assert model(torch.zeros(3, 64, 17)).shape == (3, 17)
    assert nnarena.build("lstm[hidden_size=4]", task="mnist[chunk=28]")(torch.zeros(2, 28, 28)).shape == (2, 10)
    assert nnarena.build("lstm", task="add", hidden_size=5).layer.hidden_size == 5
