"""Gradients before the optimizer sees them: torch's clipping, for each member of a population by itself."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import Stop, assert_same, bits, make, run, run_together

from nnarena.engine import hold
from nnarena.engine.hold import hold_back

S = 3


def some(seed: int = 0, *, grow: bool = False) -> list[torch.nn.Parameter]:
    """Tensors of several shapes with gradients, one without, one whose gradient is one number seen many times."""
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((3, 2), (4,), (), (2, 2, 2))]
    for param in params:
        param.grad = torch.randn_like(param) * (10**seed if grow else 1)
    params.append(torch.nn.Parameter(torch.randn(3, dtype=torch.float64)))
    params.append(torch.nn.Parameter(torch.randn(5, dtype=torch.float64)))
    params[-1].grad = torch.full((), 0.5, dtype=torch.float64).expand(5)
    return params


def after_a_step(params, dims=0, **settings):
    """The gradients as the optimizer saw them."""
    optimizer = hold_back(torch.optim.SGD([{"params": params[:2]}, {"params": params[2:]}], 1.0), settings, dims)
    before = [param.detach().clone() for param in params]
    optimizer.step()
    return [old - param.detach() for old, param in zip(before, params, strict=True)]


@pytest.mark.parametrize("norm", [0.1, 2.0, 1e6])
def test_by_norm_as_torch_does(norm):
    theirs = some()
    torch.nn.utils.clip_grad_norm_(theirs[:-1], norm, foreach=False)  # which cannot do an expanded one in place
    ours = after_a_step(some()[:-1], clip_norm=norm)
    for mine, other in zip(ours, theirs[:-1], strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if other.grad is None else other.grad)


def test_all_groups_are_one_vector_and_an_expanded_gradient_counts():
    seen = torch.cat([part.flatten() for part in after_a_step(some(), clip_norm=0.5)])
    assert float(seen.norm()) == pytest.approx(0.5, rel=1e-5)


def test_by_value_as_torch_does():
    theirs = some()[:-1]
    torch.nn.utils.clip_grad_value_(theirs, 0.3, foreach=False)
    for mine, other in zip(after_a_step(some()[:-1], clip_value=0.3), theirs, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if other.grad is None else other.grad)


@pytest.mark.parametrize("settings", [{"clip_norm": 2.0}, {"clip_value": 0.3}])
def test_members_are_apart(settings):
    each = [some(seed, grow=True) for seed in range(S)]
    stacked = []
    for rows in zip(*each, strict=True):
        param = torch.nn.Parameter(torch.stack([row.detach() for row in rows]))
        param.grad = None if rows[0].grad is None else torch.stack([row.grad for row in rows])
        stacked.append(param)
    together = after_a_step(stacked, dims=1, **settings)
    for member, params in enumerate(each):
        for mine, other in zip(after_a_step(params, **settings), together, strict=True):
            torch.testing.assert_close(other[member], mine)


def test_nothing_asked_for_is_nothing_done():
    optimizer = hold_back(torch.optim.SGD(some(), 1.0), {})
    assert not optimizer._optimizer_step_pre_hooks
    hold.clip_norm([], 1.0)


@pytest.mark.parametrize("settings", [{"clip_norm": 0.01}, {"clip_value": 0.001}])
@pytest.mark.parametrize("optimizer", ["sgd[momentum=0.9]", "orthadam[weight_decay=0.1]"])
def test_a_population_is_its_trials(settings, optimizer, tmp_path):
    trials = [make(":Small", seed=seed, epochs=3, optimizer=optimizer, **settings) for seed in range(3)]
    logs: list[str] = []
    run_together(trials, tmp_path / "one", logs=logs)
    assert not logs
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place))
        assert_same(tmp_path / "each" / str(place), tmp_path / "one" / str(place))


@pytest.mark.parametrize("settings", [{"clip_norm": 0.01}, {"clip_value": 0.001}])
def test_it_changes_a_trial_and_survives_a_stop(settings, tmp_path):
    trial = make(epochs=3, optimizer="momentum", **settings)
    with pytest.raises(Stop):
        run(trial, tmp_path / "parts", stop_after=1)
    run(trial, tmp_path / "parts")
    run(trial, tmp_path / "whole")
    run(make(epochs=3, optimizer="momentum"), tmp_path / "plain")
    assert bits(tmp_path / "parts") == bits(tmp_path / "whole")
    assert bits(tmp_path / "whole")["weights"] != bits(tmp_path / "plain")["weights"]


def test_one_optimizer_may_say_otherwise():
    assert make(optimizer="adam[clip_norm=2]", clip_norm=1.0).common("optimizer") == {"clip_norm": 2.0}
    assert make(optimizer="adam", clip_norm=1.0).common("optimizer") == {"clip_norm": 1.0}
