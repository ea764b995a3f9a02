"""What a person sees while a study runs."""

from __future__ import annotations

import re

import pytest
from launch_helpers import GRU, LSTM, small

from nnarena.launch.progress import (
    LiveProgress,
    Pace,
    PlainProgress,
    closing,
    duration,
    name,
    opening,
    progress,
    scores,
)
from nnarena.launch.run import run_study
from nnarena.launch.watch import Watcher
from nnarena.results.folder import new_result

TRIALS = small(LSTM, GRU).trials()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (8.24, "8.2 s"), (52, "52 s"), (119, "119 s"), (240, "4 min"), (9000, "2.5 h")],
)
def test_durations_are_as_exact_as_useful(seconds, text):
    assert duration(seconds) == text


def test_plain_lines_tell_of_every_trial(tmp_path, capsys):
    run_study(small(LSTM, GRU, ":Breaks", ":Diverges[after=3]", epochs=2), tmp_path, jobs=1, watcher=PlainProgress())
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0] == "4 trials to run; 1 at a time."
    assert re.match(
        r"add\[length=4\] lstm\[hidden_size=6\] seed 0: test mse \S+, 2 epochs, \S+ s  \(1/4 trials", lines[1]
    )
    assert "Breaks seed 0: failed: ZeroDivisionError: the cell [broke] at last" in lines[3]
    assert "Diverges[after=3] seed 0: diverged: no epoch had a finite loss" in lines[4]
    run_study(small(LSTM, epochs=2), tmp_path / "other", jobs=1, watcher=Watcher())
    assert capsys.readouterr() == ("", "")


def test_a_finished_study_says_so():
    assert opening([], 7, 2) == "All 7 trials are done."
    assert opening(TRIALS[:1], 0, 1) == "1 trial to run; 1 at a time."
    assert [opening([], done, 1) for done in (1, 2)] == ["The trial is done.", "All 2 trials are done."]
    assert opening(TRIALS, 3, 2) == "2 trials to run, 3 done already; 2 at a time."
    assert opening(TRIALS[:1], 0, 2) == "1 trial to run; 2 at a time."
    assert opening([], 1, 2) == "The trial is done." and str(Pace(1, 0)) == "0/1 trial"


def test_a_result_without_a_number_is_nan():
    assert scores({"mse": None, "accuracy": 0.123456}) == "mse nan, accuracy 0.1235"
    result = new_result(TRIALS[0], exclusive=True) | {"status": "diverged", "test": {"mse": 0.5}, "epochs": 3}
    assert closing(TRIALS[0], result) == f"{name(TRIALS[0])}: diverged, test mse 0.5, 3 epochs, 0.0 s"
    assert closing(TRIALS[0], result | {"epochs": 1}).endswith("1 epoch, 0.0 s")


def test_the_pace_counts_epochs_of_running_trials(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("nnarena.launch.progress.time.monotonic", lambda: now[0])
    pace = Pace(pending=2, done=1)
    assert pace.seconds_left is None and str(pace) == "1/3 trials"
    now[0] += 60
    pace.epoch(TRIALS[0], {"epoch": 2})  # of four
    assert pace.completed == 0.5 and pace.seconds_left == pytest.approx(180)
    pace.finish(TRIALS[0])
    assert str(pace) == "2/3 trials, 1.0 a minute, 60 s left"
    pace.finish(TRIALS[1])
    assert str(pace) == "3/3 trials, 2.0 a minute"


def test_without_a_terminal_there_are_plain_lines():
    assert isinstance(progress(), PlainProgress)
    assert type(progress(quiet=True)) is Watcher


def test_the_live_display_shows_brackets_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    live = LiveProgress()
    live.begin(TRIALS, 0, 1)
    for trial in TRIALS:
        live.start(trial)
        live.start(trial)
        live.epoch(trial, {"epoch": 1, "validation": {"mse": 0.5}})
    live.log("shapes [2, 3] and [bold] and lstm[a=(1)] and C:\\[x]")
    result = new_result(TRIALS[0], exclusive=True) | {"status": "failed", "error": "sizes [4, 5] [/red]"}
    live.finish(TRIALS[0], result)
    live.end()
    text = capsys.readouterr().err
    assert "shapes [2, 3] and [bold] and lstm[a=(1)] and C:\\[x]" in text
    assert "add[length=4] lstm[hidden_size=6] seed 0: failed: sizes [4, 5] [/red]" in text


def test_the_live_display_shows_many_running_trials_but_not_too_many(capsys):
    trials = small(LSTM, seeds=15).trials()
    live = LiveProgress()
    live.begin(trials, 0, 15)
    for trial in trials:
        live.start(trial)
    for trial in trials:
        live.epoch(trial, {"epoch": 1, "validation": {"mse": 0.5}})
    assert live.pace.completed == pytest.approx(15 / 4)
    assert sum(bar.visible for bar in live.bars.tasks) == 1 + 12
    for trial in trials[:5]:
        live.finish(trial, new_result(trial, exclusive=False) | {"test": {"mse": 0.5}})
    assert sum(bar.visible for bar in live.bars.tasks) == 1 + 10
    live.end()
    capsys.readouterr()
