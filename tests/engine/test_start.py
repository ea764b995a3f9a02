"""Start values by an initialiser, in trials: the same alone, together and continued."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import CPU, Stop, assert_same, bits, make, run, run_together

from nnarena.core.errors import Unfit
from nnarena.engine.fit import check_fit
from nnarena.engine.prepare import prepare


def weights(trial):
    return prepare(trial, CPU).state.params


def test_only_the_weights_are_other_ones():
    plain, other = weights(make()), weights(make(init="he"))
    same = {name for name in plain if torch.equal(plain[name], other[name])}
    assert same == {"layer.bias", "head.bias"}
    assert all(torch.equal(value, weights(make(init="he"))[name]) for name, value in other.items())
    assert not torch.equal(other["layer.weight_hh"], weights(make(init="he", seed=1))["layer.weight_hh"])


@pytest.mark.parametrize("init", ["he", "orthogonal", "identity"])
def test_a_population_is_its_trials(init, tmp_path):
    trials = [make(init=init, seed=seed, epochs=2) for seed in range(3)]
    logs: list[str] = []
    run_together(trials, tmp_path / "one", logs=logs)
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place))
        assert_same(tmp_path / "each" / str(place), tmp_path / "one" / str(place))
    assert not logs


def test_stopped_and_continued_gives_the_same_bits(tmp_path):
    trial = make(init="glorot_normal", epochs=3)
    run(trial, tmp_path / "whole")
    with pytest.raises(Stop):
        run(trial, tmp_path / "parts", stop_after=1)
    run(trial, tmp_path / "parts")
    assert bits(tmp_path / "whole") == bits(tmp_path / "parts")


def test_what_does_not_apply_is_known_before_anything_runs():
    with pytest.raises(Unfit, match=r"^mlp does not fit add\[length=4\]: init=identity has nothing to set"):
        check_fit(make("mlp", init="identity"))
