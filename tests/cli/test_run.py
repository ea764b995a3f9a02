"""`nnarena run` from the request to the report."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = ("--samples", "640", "--batch-size", "32", "--epochs", "2")
ROW = {
    "task", "model", "optimizer", "trials", "failed", "parameters", "epochs", "seconds_per_epoch", "test", "published",
    "command",
}  # fmt: skip
RESULT = {
    "task", "model", "optimizer", "options", "seed", "status", "parameters", "epochs", "best_epoch", "seconds_total",
    "seconds_per_epoch", "exclusive_timing", "peak_memory", "training", "collapsed", "validation", "test", "error",
    "baselines", "device",
}  # fmt: skip


def test_trials_run_where_nothing_can_make_tables_of_them(arena, own: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)  # as if it were not installed
    ended = arena("run", "-t", "add[length=4]", "-m", "lstm[hidden_size=4]", *SMALL, "--jobs", "1", "--out", "R")
    assert ended.code == 0, ended.err
    assert "pip install polars, then nnarena report R." in ended.err
    assert len(list((own / "R").glob("trials/*/*/*/*/result.json"))) == 1


def test_a_study_ends_with_its_leaderboard_and_repeating_it_does_nothing(arena, own: Path) -> None:
    command = ("run", "-t", "add[length=10],memory[length=5]", "-m", "lstm,gru", "--seeds", "2", *SMALL, "--jobs", "1")
    first = arena(*command, "--out", "R")
    assert first.code == 0
    assert "add[length=10]" in first.out and "baseline" in first.out and "Report: R/report.html" in first.out
    assert "8/8 trials" in first.err
    files = {path: path.read_bytes() for path in (own / "R" / "trials").rglob("*") if path.is_file()}
    again = arena(*command, "--out", "R")
    assert again.code == 0 and "All 8 trials are done." in again.err
    assert files == {path: path.read_bytes() for path in (own / "R" / "trials").rglob("*") if path.is_file()}

    summary = json.loads(arena("report", "R", "--format", "json").out)
    assert [(row["task"], row["model"]) for row in summary["rows"]].count(("add[length=10]", "gru")) == 1
    assert len(summary["rows"]) == 4 and all(set(row) - {"collapsed"} == ROW for row in summary["rows"])
    assert all(
        set(figures) == {"mean", "std", "low", "high"} for row in summary["rows"] for figures in row["test"].values()
    )
    for path in (own / "R" / "trials").glob("*/*/*/*/result.json"):
        result = json.loads(path.read_text())
        assert set(result) == RESULT
        assert result["exclusive_timing"] and result["peak_memory"] > 0
        assert {file.name for file in path.parent.iterdir()} == {
            "trial.json", "curve.jsonl", "result.json", "model.safetensors",
        }  # fmt: skip


def test_more_seeds_and_models_join_what_is_there(arena, own: Path) -> None:
    base = ("run", "-t", "add[length=10]", *SMALL, "--jobs", "1", "--out", "R")
    assert arena(*base, "-m", "lstm").code == 0
    grown = arena(*base, "-m", "lstm,gru", "--seeds", "2")
    assert grown.code == 0 and "3 trials to run, 1 done already" in grown.err


def test_a_persons_own_model_task_and_optimizer_take_part_in_workers(process) -> None:
    who = ("-t", "mine.py:parity", "-m", "gru,mine.py:MyCell[hidden_size=[4,6]],mine.py:Boom", "-o", "mine.py:MySGD")
    printed = process("run", *who, "--batch-size", "32", "--epochs", "2", "--jobs", "2", "--out", "R")
    assert printed.code == 1, printed.err
    assert "MyCell[hidden_size=6]" in printed.out and "(1 failed)" in printed.out
    assert "ZeroDivisionError: training is hard" in printed.err and "Traceback" not in printed.err
    status = process("status", "R", "--json")
    assert json.loads(status.out)["counts"] == {"done": 3, "failed": 1}


def test_failures_are_done_again_only_when_asked(arena, own: Path) -> None:
    command = ("run", "-t", "add[length=10]", "-m", "mine.py:Boom", *SMALL, "--out", "R")
    assert arena(*command).code == 1
    assert "The one trial is done" in arena(*command).err
    retried = arena(*command, "--retry")
    assert retried.code == 1 and "1 trial to run" in retried.err


def test_a_plan_runs_nothing_and_says_what_is_done(arena, own: Path) -> None:
    command = (
        "run",
        "-t",
        "add[length=[10,20]]",
        "-m",
        "lstm[hidden_size=[4,8]]",
        "--seeds",
        "2",
        *SMALL,
        "--out",
        "R",
    )
    plan = json.loads(arena(*command, "--plan", "--json").out)
    assert not (own / "R").exists()
    assert [(cell["task"], cell["model"]) for cell in plan["cells"]] == [
        (f"add[length={length}]", f"lstm[hidden_size={size}]") for length in (10, 20) for size in (4, 8)
    ]
    assert plan["trials"] == 8 and plan["done"] == 0 and plan["seconds_left"] > 0
    assert plan["cells"][0]["parameters"] == 4 * (4 * (2 + 4) + 4) + 4 + 1
    assert arena(*command, "--jobs", "1").code == 0
    text = arena(*command, "--plan").out
    assert "8 trials, 8 done" in text and "an epoch" in text
    assert json.loads(arena(*command, "--plan", "--json").out)["seconds_left"] == 0


def test_a_plan_lists_what_is_missing(arena) -> None:
    printed = arena("run", "poster", "--plan", "--json", "-m", "gru", "--samples", "1280")
    plan = json.loads(printed.out)
    assert len(plan["cells"]) == 5 and len(plan["obstacles"]) == 3
    whole = arena("show", "poster").out
    assert "Not in this version yet" in whole or "ct_rnn" in whole


def test_the_command_behind_a_row_gives_the_same_trials(arena, own: Path) -> None:
    who = ("-t", "add[length=10]", "-m", "lstm,gru", "--seeds", "2", "--lr", "0.01")
    arena("run", *who, *SMALL, "--jobs", "1", "--out", "R")
    row = json.loads(arena("report", "R", "--format", "json").out)["rows"][0]
    words = shlex.split(row["command"])
    assert words[0] == "nnarena"
    assert arena(*words[1:], "--jobs", "1", "--out", "again").code == 0
    ids = {path.name for path in (own / "again" / "trials").glob("*/*/*/*")}
    assert len(ids) == 2 and ids < {path.name for path in (own / "R" / "trials").glob("*/*/*/*")}


def test_quick_is_the_whole_study_at_a_small_size(arena) -> None:
    printed = arena("run", "quickstart", "--quick", "--jobs", "1", "--json")
    summary = json.loads(printed.out)
    assert printed.code == 0
    assert {(row["model"], row["epochs"]) for row in summary["rows"]} == {
        (m, 1) for m in ("lstm", "gru", "transformer")
    }


@pytest.mark.slow
def test_the_rehearsal_of_element_wise_attention_goes_through(arena) -> None:
    printed = arena("run", "attention-wise", "--quick", "--jobs", "1", "--json")
    rows = json.loads(printed.out)["rows"]
    assert printed.code == 0 and len(rows) == 12 and {row["epochs"] for row in rows} == {2}
    for row in rows:
        assert row["training"].keys() == {"loss", "loss_sum", "gradient", "last_gradient", "first_gradient"}
        assert row["training"]["gradient"]["mean"] > 0 and row["collapsed"] in (0, 1)


@pytest.mark.slow
def test_twenty_kills_at_random_points_leave_the_same_bits(own: Path) -> None:
    command = [sys.executable, "-m", "nnarena", "run", "-t", "add,memory", "-m", "lstm,gru,transformer", "--seeds", "2",
               "--epochs", "2", "--samples", "2560", "--jobs", "2", "--out"]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began = time.monotonic()
    subprocess.run([*command, "whole"], check=True, **quiet)
    most = time.monotonic() - began
    rng = random.Random(0)
    for _ in range(20):
        child = subprocess.Popen([*command, "killed"], **quiet)
        time.sleep(rng.uniform(1, most / 2))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    subprocess.run([*command, "killed"], check=True, **quiet)
    models = sorted((own / "whole").rglob("model.safetensors"))
    assert len(models) == 12
    for path in models:
        twin = Path(str(path).replace("/whole/", "/killed/"))
        assert twin.read_bytes() == path.read_bytes()
        results = [json.loads((one.parent / "result.json").read_text()) for one in (path, twin)]
        for key in ("status", "epochs", "best_epoch", "validation", "test", "baselines"):
            assert results[0][key] == results[1][key]


def test_one_thing_has_one_spelling_in_the_store(arena, own: Path) -> None:
    typed = ("-t", "add[samples=640,length=10]", "-o", "sgd[momentum=0.5,lr=1]")
    assert arena("run", *typed, "-m", "lstm", "--batch-size", "32", "--epochs", "1", "--out", "R").code == 0
    summary = json.loads(arena("report", "R", "--format", "json").out)
    assert summary["pending"] == 0
    assert summary["rows"][0]["optimizer"] == "sgd[lr=1.0,momentum=0.5]"
    assert summary["rows"][0]["task"] == "add[length=10,samples=640]"
