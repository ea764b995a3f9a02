"""Lean steps of Adam against Adam's own, bit for bit, and through a saved state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from nnarena.optim.lean import stepper

SHAPES = [(4, 3), (4,), ()]


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]


def step_plainly(optimizer: torch.optim.Optimizer, params: list[Tensor], gradients: list[Tensor]) -> None:
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient
    optimizer.step()


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"betas": (0.5, 0.9), "eps": 1e-3}])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_lean_steps_have_the_bits_of_the_usual_ones(kind, settings):
    ours, theirs = tensors(0), tensors(0)
    lean, usual = (kind(params, 0.01, fused=True, **settings) for params in (ours, theirs))
    move = stepper(lean, ours)
    for step in range(1, 8):
        gradients = [tensor.detach() for tensor in tensors(step)]
        move(gradients)
        step_plainly(usual, theirs, gradients)
        if step == 4:  # a state that is saved and loaded is the same, and goes on
            state = copy.deepcopy(lean.state_dict())
            lean = kind(ours, 0.01, fused=True, **settings)
            lean.load_state_dict(state)
            move = stepper(lean, ours)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(lean.state.values(), usual.state.values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_another_learning_rate_counts_for_who_asks_again():
    params, start = [torch.ones(2).requires_grad_()], torch.ones(2)
    optimizer = torch.optim.Adam(params, 0.1, fused=True)
    move = stepper(optimizer, params)
    move([start])
    move([start])
    optimizer.param_groups[0]["lr"] = 0.0
    before = params[0].detach().clone()
    stepper(optimizer, params)([start])
    assert torch.equal(params[0], before)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop])
def test_any_other_optimizer_takes_its_own_steps(kind):
    ours, theirs = tensors(0), tensors(0)
    optimizers = [kind(params, 0.01) for params in (ours, theirs)]
    move = stepper(optimizers[0], ours)
    for step in range(3):
        gradients = [tensor.detach() for tensor in tensors(step)]
        move(gradients)
        step_plainly(optimizers[1], theirs, gradients)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_who_has_no_gradient_stays():
    params = tensors(0)
    before = [param.detach().clone() for param in params]
    move = stepper(torch.optim.Adam(params, 0.01, fused=True), params)
    for _ in range(3):
        move([None, torch.ones(4), torch.ones(())])
    assert torch.equal(params[0], before[0]) and not torch.equal(params[1], before[1])
