"""Trials whose models learn from what they do: the same folder, the same bits after a stop, every end a row."""

from __future__ import annotations

import json

import pytest
from engine_helpers import CPU, Stop, bits, curve, make, run, run_together

from nnarena.engine.fit import check_fit, seconds_per_epoch
from nnarena.engine.practice import practises
from nnarena.launch.populations import populations
from nnarena.results.folder import CHECKPOINT, MODEL

TASK = "pendulum[steps=40,warm_up=20,episodes=2,critic_size=8,buffer=100,frames=2]"
MLP = "mlp[hidden_size=8]"
CARRIED = {"task": f"{TASK[:-1]},carry=true,burn_in=1]", "model": "lstm[hidden_size=4]"}


def trial(task: str = TASK, model: str = MLP, **more):
    settings = {"epochs": 2, "batch_size": 8, "samples": None, "lr": 1e-3}
    return make(model, task, **(settings | more))


def test_a_trial_ends_with_its_episodes_and_a_result(tmp_path):
    logs: list[str] = []
    result = run(trial(), tmp_path, logs=logs)
    lines = curve(tmp_path)
    assert result["status"] == "done" and result["epochs"] == 2 and not logs
    assert list(result["test"]) == ["cost", "return"] and result["test"]["return"] < 0
    best = min(lines, key=lambda line: line["validation"]["cost"])
    assert result["best_epoch"] == best["epoch"] and result["validation"] == best["validation"]
    assert result["validation"] != result["test"]
    assert [line["steps"] for line in lines] == [40, 80]
    rewards = [line["training"]["reward_per_step"] for line in lines]
    assert result["training"]["reward_per_step"] == pytest.approx(sum(rewards) / 2)
    assert set(result["baselines"]) == {"random actions"}
    assert (tmp_path / MODEL).exists() and not (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize(
    "given",
    [{}, {"task": f"{TASK[:-1]},carry=true,burn_in=1]", "model": "lstm[hidden_size=4]"}],
    ids=["mlp", "carried"],
)
def test_a_trial_that_was_stopped_comes_out_with_the_same_bits(tmp_path, given):
    whole = run(trial(**given), tmp_path / "whole")
    with pytest.raises(Stop):
        run(trial(**given), tmp_path / "parts", stop_after=1)
    run(trial(**given), tmp_path / "parts")
    assert bits(tmp_path / "whole", whole) == bits(tmp_path / "parts")


def test_a_damaged_checkpoint_is_told_and_the_trial_begins_anew(tmp_path):
    whole = run(trial(), tmp_path / "whole")
    with pytest.raises(Stop):
        run(trial(), tmp_path / "parts", stop_after=1)
    path = tmp_path / "parts" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-100])
    logs: list[str] = []
    run(trial(), tmp_path / "parts", logs=logs)
    assert len(logs) == 1 and "starts again from its beginning" in logs[0]
    assert bits(tmp_path / "whole", whole) == bits(tmp_path / "parts")


def test_early_stopping_and_plateaus_do_not_disturb(tmp_path):
    result = run(trial(epochs=3, stop_patience=1, plateau_patience=1, min_delta=1e9), tmp_path)
    assert result["epochs"] == 3 and {line["lr"] for line in curve(tmp_path)} == {1e-3}


def test_at_milestones_all_learning_rates_fall(tmp_path):
    run(trial(schedule="steps", milestones=(1,), step_factor=0.5), tmp_path)
    assert [line["lr"] for line in curve(tmp_path)] == [1e-3, 5e-4]


def test_several_run_one_after_another_without_a_word(tmp_path):
    logs: list[str] = []
    trials = [trial(seed=seed) for seed in (0, 1)]
    results = run_together(trials, tmp_path / "together", logs=logs)
    assert not logs and [result["status"] for result in results] == ["done", "done"]
    alone = run(trials[1], tmp_path / "alone")
    assert bits(tmp_path / "together" / "1") == bits(tmp_path / "alone", alone)
    assert populations(trials, None) == [[trials[0]], [trials[1]]]


def test_time_that_is_up_is_a_row(tmp_path):
    result = run(trial(timeout=1e-3), tmp_path)
    assert result["status"] == "timeout" and result["epochs"] == 0


def test_a_loss_that_is_no_number_is_a_row(tmp_path):
    result = run(trial(lr=1e30), tmp_path)
    assert result["status"] == "diverged" and json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"


def test_an_error_is_a_row(tmp_path):
    result = run(trial(model=":Breaks"), tmp_path)
    assert result["status"] == "failed" and result["error"] == "ZeroDivisionError: the cell [broke] at last"


def test_fit_and_cost_are_known_before():
    assert practises(trial()) and not practises(make())
    assert check_fit(trial()) == 3 * 8 + 8 + 16 + 8 * 2 + 2
    assert 0 < seconds_per_epoch([trial()], CPU) < 60
