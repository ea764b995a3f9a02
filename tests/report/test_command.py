from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from report_stores import make_study

from nnarena.core.options import parse_choice
from nnarena.core.protocol import Protocol
from nnarena.report.command import changed_settings, run_command, shown_folder, source_study


def test_a_command_survives_the_shell() -> None:
    study = make_study(["add"], ["a"], ["adam"], seeds=4, protocol=Protocol(lr=0.01))
    model = "my file.py:Cell[word='it is',size=(1,2)]"
    words = shlex.split(run_command(study, {"lr": 0.01, "samples": None}, "add[length=20]", model, "adam"))
    assert words == [
        *("nnarena", "run", "-t", "add[length=20]", "-m", model, "-o", "adam", "--seeds", "4"),
        *("--set", "lr=0.01", "--set", "samples=none"),
    ]
    assert str(parse_choice(words[5])[0]) == model


def test_a_study_file_that_has_gone_leaves_all_settings(tmp_path: Path) -> None:
    study = make_study(["add"], ["a"], ["adam"], source=str(tmp_path / "gone.toml"), protocol=Protocol(epochs=3))
    assert source_study(study) is None
    assert changed_settings(study, None) == {"epochs": 3}


def test_settings_of_the_source_are_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('tasks = ["add"]\nmodels = ["a"]\n[protocol]\nepochs = 3\nbatch_size = 32\n')
    study = make_study(["add"], ["a"], ["adam"], source=str(file), protocol=Protocol(epochs=3, lr=0.1))
    # The file's batch size was set back to the default, so that has to be said.
    assert changed_settings(study, source_study(study)) == {"batch_size": 128, "lr": 0.1}


def test_a_shared_report_tells_no_path_of_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_folder(tmp_path / "runs" / "mine") == "runs/mine"
    assert shown_folder(Path("runs/my study")) == "runs/my study"
    monkeypatch.chdir("/")
    monkeypatch.chdir(tmp_path.parent.parent)
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert shown_folder(tmp_path / "mine") == "mine"


def test_an_object_of_a_notebook_has_no_command() -> None:
    study = make_study(["add"], ["<python>:Cell"], ["adam"])
    assert run_command(study, {}, "add", "<python>:Cell", "adam").startswith("# Cell was handed over in Python")
