"""A learning rate for each member: what one step of one rate becomes for all."""

from __future__ import annotations

import pytest
import torch

from nnarena.engine.blend import Blend

RATES = [1.0, 0.1, 0.0, 0.7]


def test_parameters_stay_who_they_are():
    params = [torch.randn(4, 3, 5, requires_grad=True), torch.randn(4, requires_grad=True)]
    before = [param.detach().clone() for param in params]
    Blend(params, 4, 0.1)
    assert all(param.is_leaf and param.requires_grad for param in params)
    assert all(torch.equal(param, old) for param, old in zip(params, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_every_member_takes_its_share_of_the_step(dtype):
    params = [torch.randn(4, 3, 5, dtype=dtype), torch.randn(4, dtype=dtype)]
    blend = Blend(params, 4, 0.01)
    old = [param.clone() for param in params]
    blend.set_rates([0.01 * rate for rate in RATES])
    blend.remember()
    steps = [torch.randn_like(param) for param in params]
    new = [start + step for start, step in zip(old, steps, strict=True)]
    for param, step in zip(params, steps, strict=True):
        param += step
    blend.apply()
    for param, start, end in zip(params, old, new, strict=True):
        assert torch.equal(param[0], end[0]), "rate 1 is the step itself"
        assert torch.equal(param[2], start[2]), "rate 0 stands still"
        for row, rate in enumerate(RATES):
            torch.testing.assert_close(param[row], start[row] + rate * (end[row] - start[row]))


def test_who_stands_still_is_not_touched_by_a_nan():
    (param,) = params = [torch.ones(2, 3)]
    blend = Blend(params, 2, 1.0)
    blend.set_rates([0.0, 1.0])
    blend.remember()
    param.fill_(float("nan"))
    blend.apply()
    assert torch.equal(param[0], torch.ones(3)) and bool(param[1].isnan().all())
