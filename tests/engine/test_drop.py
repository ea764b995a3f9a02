"""Dropout by keyed numbers: the right share, other ones at every place and step, the same alone and together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import Stop, assert_same, bits, make, run, run_together
from torch import nn

from nnarena.engine.drop import Dropping, dropping, may_drop

KEYS, STEP = torch.tensor([5, 2**62 + 11, 77]), torch.tensor([3])
SHORT = {"epochs": 2, "samples": 96, "batch_size": 8}
DROPPERS = [
    (":noisy", "add[length=4]"),
    ("attention_split[hidden_size=16,heads=2,dropout=0.2]", "digits"),
    ("attention_split[hidden_size=16,heads=2,dropout=0.2,variant=released]", "digits"),
    ("predictor_transformer[hidden_size=16,heads=2,dim_feedforward=8]", "digits"),
    ("predictor_attention_split[hidden_size=16,heads=2]", "digits"),
]


def drop(x, p=0.3, key=KEYS[0], step=STEP, **more):
    with Dropping(key, step):
        return F.dropout(x, p, **more)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_such_a_share_is_left_out_and_the_rest_is_larger(p):
    y = drop(torch.full((300, 500), 2.0, dtype=torch.float64), p)
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=0.005)
    assert torch.equal(y[y != 0].unique(), torch.tensor([2 / (1 - p)], dtype=torch.float64).to(y))
    for dim in (0, 1):
        shares = (y == 0).double().mean(dim)
        expected = (p * (1 - p) / y.shape[dim]) ** 0.5
        assert float(shares.std()) == pytest.approx(expected, rel=0.15), "rows and columns are independent"


def test_the_gradient_passes_where_the_numbers_did():
    x = torch.randn(40, 50, dtype=torch.float64, requires_grad=True)
    y = drop(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (y != 0).double() / 0.7)


def test_another_one_for_every_layer_step_and_key_and_the_same_again():
    ones = torch.ones(1000)
    with Dropping(KEYS[0], STEP):
        first, second = F.dropout(ones), F.dropout(ones)
    others = [second, drop(ones, 0.5, step=STEP + 1), drop(ones, 0.5, key=KEYS[1])]
    for other in others:
        assert float((first == other).double().mean()) == pytest.approx(0.5, abs=0.06)
    assert torch.equal(drop(ones, 0.5), first)


def test_it_draws_nothing_from_torchs_stream_and_leaves_other_kinds_to_it():
    before = torch.get_rng_state()
    drop(torch.ones(100))
    assert torch.equal(torch.get_rng_state(), before)
    with Dropping(KEYS[0], STEP):
        F.alpha_dropout(torch.ones(100), 0.5, training=True)
    assert not torch.equal(torch.get_rng_state(), before)


def test_nothing_is_left_out_when_a_model_is_judged_or_the_share_is_none():
    x = torch.randn(100)
    assert torch.equal(drop(x, training=False), x) and torch.equal(drop(x, 0.0), x)
    assert torch.equal(drop(x, 1.0), torch.zeros(100))
    with pytest.raises(ValueError, match="probability"):
        drop(x, 1.5)


def test_in_place():
    x = torch.ones(100)
    y = drop(x, inplace=True)
    assert y is x and torch.equal(x, drop(torch.ones(100)))


def test_members_leave_out_what_they_would_alone():
    x = torch.randn(3, 20, 30)
    together = torch.vmap(lambda x, key: drop(x, key=key), randomness="error")(x, KEYS)
    for member, key in enumerate(KEYS):
        assert torch.equal(together[member], drop(x[member], key=key))


def test_only_who_may_drop_pays_for_it():
    assert may_drop(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    assert not may_drop(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.LSTM(2, 2)))
    assert may_drop(nn.LSTM(2, 2, num_layers=2, dropout=0.1))
    assert not isinstance(dropping(nn.Linear(2, 2), KEYS[0], STEP), Dropping)


@pytest.mark.parametrize(("model", "task"), DROPPERS, ids=str)
def test_a_population_with_dropout_is_its_trials_and_a_stopped_one_goes_on(model, task, tmp_path):
    trials, logs = [make(model, task, "momentum", seed, **SHORT) for seed in range(2)], []
    run_together(trials, tmp_path / "one", logs=logs)
    assert not logs
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place))
        assert_same(tmp_path / "each" / str(place), tmp_path / "one" / str(place))
    with pytest.raises(Stop):
        run(trials[1], tmp_path / "parts", stop_after=1)
    run(trials[1], tmp_path / "parts")
    assert bits(tmp_path / "parts") == bits(tmp_path / "each" / "1")
