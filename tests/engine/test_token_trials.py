"""Trials whose targets are sequences of tokens: alone, as a population, stopped and continued."""

from __future__ import annotations

import json

import pytest
import torch
from engine_helpers import Stop, assert_same, bits, make, run, run_together

from nnarena.engine.fit import check_fit, seconds_per_step
from nnarena.results.folder import ATTENTION

TASK = "reverse[length=4,shortest=2]"
MODELS = [
    "encoder_decoder[hidden_size=8,attention=none]",
    "encoder_decoder[hidden_size=8,attention=additive,cell=lstm]",
    "seq2seq_transformer[d_model=8,num_layers=1]",
    "encoder_decoder[hidden_size=8,forcing=scheduled,anneal=linear,anneal_steps=24]",
    "encoder_decoder[hidden_size=8,forcing=professor,beam=2]",
]


@pytest.mark.parametrize("model", MODELS)
def test_a_population_is_its_trials(model, tmp_path):
    # Not Adam, which would blow up the rounding of biases of keys, that no gradient reaches.
    trials = [make(model, TASK, "sgd", seed=seed, epochs=2, samples=160) for seed in range(2)]
    logs = []
    run_together(trials, tmp_path / "together", logs=logs)
    assert not logs
    for place, trial in enumerate(trials):
        result = run(trial, tmp_path / "alone" / str(place))
        assert list(result["test"]) == ["cross_entropy", "token_accuracy", "exact_match"]
        assert_same(tmp_path / "alone" / str(place), tmp_path / "together" / str(place))


@pytest.mark.parametrize("model", MODELS[1:])
def test_a_trial_that_was_stopped_goes_on_with_the_same_bits(model, tmp_path):
    trial = make(model, TASK, epochs=2, samples=160)
    run(trial, tmp_path / "whole")
    with pytest.raises(Stop):
        run(trial, tmp_path / "parts", stop_after=1)
    run(trial, tmp_path / "parts")
    assert bits(tmp_path / "whole") == bits(tmp_path / "parts")


@pytest.mark.parametrize(
    ("model", "of"),
    [
        ("encoder_decoder[hidden_size=24]", ""),
        ("seq2seq_transformer[d_model=16,num_layers=1]", "the mean over its heads"),
    ],
)
def test_attention_learns_to_turn_short_sequences_round(model, of, tmp_path):
    more = {"samples": 1500, "epochs": 8, "batch_size": 32}
    result = run(make(model, "reverse[length=4,shortest=2,symbols=4]", **more), tmp_path)
    assert result["test"]["exact_match"] > 0.9 > 10 * result["baselines"]["majority token"]["exact_match"]
    shown = json.loads((tmp_path / ATTENTION).read_text())
    maps = shown["maps"]
    assert len(maps) == 3 and of in shown["of"] and bool(of) == bool(shown["of"])
    for drawn in maps:
        assert drawn["target"] == [*drawn["source"][::-1], "■"] and len(drawn["weights"]) == len(drawn["written"])
        for row in drawn["weights"]:
            assert sum(row) == pytest.approx(1, abs=0.01) and len(row) == len(drawn["source"])


def test_without_attention_there_is_nothing_to_show(tmp_path):
    run(make(MODELS[0], TASK, epochs=1, samples=160), tmp_path)
    assert not (tmp_path / ATTENTION).exists()


def test_it_fits_before_anything_runs_and_its_steps_can_be_timed():
    trial = make(MODELS[0], TASK)
    assert check_fit(trial) > 0
    assert seconds_per_step([trial], torch.device("cpu")) > 0
