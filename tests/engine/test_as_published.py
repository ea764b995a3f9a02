"""Settings by which a publication can be followed: milestones, the last epoch, and a test that is watched."""

from __future__ import annotations

import pytest
from engine_helpers import CPU, assert_same, bits, curve, make, run, run_together

from nnarena.engine.prepare import prepare
from nnarena.engine.step import evaluate
from nnarena.engine.tensors import load
from nnarena.results.folder import MODEL

STEPS = {"schedule": "steps", "milestones": (1, 3), "step_factor": 0.5, "stop_patience": 9}


def test_the_learning_rate_falls_after_the_milestones(tmp_path):
    run(make(lr=0.08, **STEPS), tmp_path)
    assert [line["lr"] for line in curve(tmp_path)] == [0.08, 0.04, 0.04, 0.02]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_stopped_and_continued_is_the_same(stop, tmp_path):
    trial = make(**STEPS, select="last", watch_test=True)
    run(trial, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(trial, tmp_path / "stopped", stop_after=stop)
    run(trial, tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


@pytest.mark.parametrize("optimizer", ["adam", "orthadam"])
def test_a_population_is_its_trials(optimizer, tmp_path):
    trials = [make(":Small", seed=seed, optimizer=optimizer, **STEPS, watch_test=True) for seed in range(3)]
    run_together(trials, tmp_path / "together")
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "alone" / str(place))
        assert_same(tmp_path / "together" / str(place), tmp_path / "alone" / str(place))
        lines = [curve(tmp_path / way / str(place)) for way in ("together", "alone")]
        for one, other in zip(*lines, strict=True):
            assert one["test"] == pytest.approx(other["test"], rel=1e-4)


def test_a_watched_test_changes_nothing_and_is_what_would_have_been_found(tmp_path):
    run(make(), tmp_path / "plain")
    result = run(make(watch_test=True), tmp_path / "watched")
    lines, plain = curve(tmp_path / "watched"), curve(tmp_path / "plain")
    assert all("test" not in line for line in plain)
    assert [line | {"test": None} for line in lines] == [line | {"test": None} for line in plain]
    assert (tmp_path / "plain" / MODEL).read_bytes() == (tmp_path / "watched" / MODEL).read_bytes()
    assert lines[result["best_epoch"] - 1]["test"] == result["test"]


def test_the_last_weights_are_tested(tmp_path):
    # The loss of this net swings, so the best epoch is not the last one.
    wild = {"epochs": 4, "stop_patience": 9, "watch_test": True}
    best = run(make(":Swings", **wild), tmp_path / "best")
    last = run(make(":Swings", **wild, select="last"), tmp_path / "last")
    assert best["best_epoch"] < 4 == last["best_epoch"]
    assert last["test"] == curve(tmp_path / "last")[-1]["test"] != best["test"]
    ready = prepare(make(":Swings", **wild), CPU)
    weights = load(tmp_path / "last" / MODEL)[0]
    assert evaluate(ready.model, ready.task, weights, ready.parts["test"], 16) == last["test"]
