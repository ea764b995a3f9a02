"""Some parameters with a learning rate of their own."""

from __future__ import annotations

import copy

import pytest
import torch
from engine_helpers import CPU, assert_same, bits, make, run, run_together

from nnarena.core.errors import ArenaError
from nnarena.engine.fit import check_fit
from nnarena.engine.prepare import prepare, with_own_rates
from nnarena.engine.step import train_step

OWN = "adam[lr=0.01,lr_of='head:0.1']"


def test_it_is_two_optimizers_in_one():
    ready = prepare(make("lstm[hidden_size=4]", optimizer=OWN), CPU)
    twin = copy.deepcopy(ready.model)
    twin.load_state_dict(ready.state.weights())
    parts = [[p for name, p in twin.named_parameters() if name.startswith("head") is own] for own in (False, True)]
    optimizers = [torch.optim.Adam(part, lr=lr) for part, lr in zip(parts, (0.01, 0.1), strict=True)]
    for index in torch.arange(24).view(3, 8):
        inputs, targets = ready.parts["train"].batch(index)
        train_step(ready.model, ready.task, ready.state, inputs, targets)
        twin.zero_grad()
        ready.task.loss(twin(*inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, param in twin.named_parameters():
        torch.testing.assert_close(ready.state.params[name], param, msg=name)


def test_a_population_is_its_trials(tmp_path):
    trials, logs = [make(":Small", optimizer="adam[lr_of='bias:0.05']", seed=seed) for seed in range(2)], []
    run_together(trials, tmp_path / "together", logs=logs)
    assert not logs
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "alone" / str(place))
        assert_same(tmp_path / "together" / str(place), tmp_path / "alone" / str(place))


def test_who_differs_in_one_of_several_rates_runs_alone(tmp_path):
    trials, logs = [make(":Small", optimizer=f"adam[lr={lr},lr_of='bias:0.05']") for lr in (0.01, 0.02)], []
    run_together(trials, tmp_path / "together", logs=logs)
    assert "several learning rates each" in logs[0]
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "alone" / str(place))
        assert_same(tmp_path / "together" / str(place), tmp_path / "alone" / str(place))


def test_stopped_and_continued_is_the_same(tmp_path):
    trial = make(":Small", optimizer=OWN.replace("head", "bias"))
    run(trial, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(trial, tmp_path / "stopped", stop_after=1)
    run(trial, tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_the_first_that_fits_counts_and_nobody_is_lost():
    params = {name: torch.zeros(1) for name in ("a.weight", "a.bias", "b.weight", "b.bias")}
    groups = with_own_rates(params, "a.:0.5+bias:0.1")
    assert [group.get("lr") for group in groups] == [None, 0.5, 0.1]
    assert [len(group["params"]) for group in groups] == [1, 2, 1]
    assert [group["lr"] for group in with_own_rates(params, "a:1+b:2")] == [1.0, 2.0], "nobody is left"
    assert len(with_own_rates(params, "")) == 4


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        ("attention:0.1", "no parameter has 'attention' in its name; they begin with layer, head."),
        ("head", "as in attention:0.1, not 'head'."),
        ("head:fast", "as in attention:0.1, not 'head:fast'."),
        ("head:0", "as in attention:0.1, not 'head:0'."),
        (":0.1", "as in attention:0.1, not ':0.1'."),
        ("head:0.1+", "as in attention:0.1, not ''."),
    ],
)
def test_what_cannot_be_meant(rates, sentence):
    with pytest.raises(ArenaError, match=sentence):
        check_fit(make("lstm[hidden_size=4]", optimizer=f"adam[lr_of='{rates}']"))


def test_trials_without_it_stay_what_they_were():
    assert "lr_of" not in make("lstm").options["optimizer"]
    assert make("lstm").id != make("lstm", optimizer=OWN).id
