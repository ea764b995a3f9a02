"""The kernels of a step beside the lists of tensors that they stand for; without a GPU, in Triton's interpreter."""

from __future__ import annotations

import copy

import pytest
import torch
from optim_helpers import gradients, start, walk

from nnarena.optim import SGDP, AdamP, OrthAdam

# more rows than a program has, more columns than it sees at a time and in all, odd sizes, no rows at all
SHAPES = ((3, 2), (4,), (5, 3, 2, 2), (), (19, 131), (2, 1100), (1, 7), (1500,))
RELEASED = {"threshold": "constant", "eps_place": "outside", "decay": "released", "project": "all"}
ADAM = [
    {},
    {"delta": 0.9, "threshold": "constant"},
    {"delta": 0.5, "view": "channel", "weight_decay": 0.3},
    {"delta": 0.0, "weight_decay": 0.3},
    {**RELEASED, "delta": 0.9, "weight_decay": 0.5},
    {**RELEASED, "view": "channel", "delta": 0.9, "weight_decay": 0.5},
    {"amsgrad": True, "betas": (0.5, 0.8), "eps": 1e-2, "delta": 0.9},
    {"maximize": True, "betas": (0.0, 0.0), "eps": 1e-2},
]
PACKAGE = [
    {},
    {"weight_decay": 0.3, "wd_ratio": 0.2},
    {"nesterov": True, "maximize": True, "amsgrad": True, "betas": (0.5, 0.8), "eps": 1e-2},
    {"delta": 0.9, "eps": 1e-3},
]
MOMENTUM = [{"momentum": 0.9}, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.2}, {"dampening": 0.3}]
CASES = [
    *((OrthAdam, options) for options in ADAM),
    *((AdamP, options) for options in PACKAGE),
    *((SGDP, options) for options in MOMENTUM),
]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_kernels_do_what_lists_of_tensors_do(kind, options):
    exact = walk(lambda params: kind(params, lr=0.01, **options), steps=4, shapes=SHAPES)
    fused = walk(
        lambda params: kind(params, lr=0.01, fused=True, **options), steps=4, shapes=SHAPES, dtype=torch.float32
    )
    assert torch.allclose(fused.double(), exact, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [OrthAdam, AdamP, SGDP])
def test_members_of_a_population_move_as_if_alone(kind):
    shapes = ((5, 9), (4,), (3, 2, 2, 2))
    options = {"delta": 0.9, **({"view": "channel"} if kind is OrthAdam else {})}
    alone = [start(shapes, torch.float32, seed) for seed in range(3)]
    together = [torch.nn.Parameter(torch.stack([p.detach() for p in ps])) for ps in zip(*alone, strict=True)]
    optimizers = [kind(params, lr=0.01, fused=True, **options) for params in [*alone, together]]
    optimizers[-1].population_dims = 1
    for step in range(4):
        grads = [list(gradients(params, step, seed)) for seed, params in enumerate(alone)]
        for params, theirs in zip(alone, grads, strict=True):
            for param, grad in zip(params, theirs, strict=True):
                param.grad = grad
        for param, rows in zip(together, zip(*grads, strict=True), strict=True):
            param.grad = torch.stack(rows)
        for optimizer in optimizers:
            optimizer.step()
    for place, param in enumerate(together):
        for member, params in enumerate(alone):
            assert torch.equal(param[member], params[place])


def quadratic(params, optimizer, steps=4):
    """The end of a short walk down Σ |p − 1|² and the same for complex numbers."""
    for _ in range(steps):
        optimizer.zero_grad()
        sum(((p - 1).abs() ** 2).sum() for p in params).backward()
        optimizer.step()
    return [p.detach().clone() for p in params]


def test_complex_parameters_transposed_gradients_and_channels_last():
    ends = []
    for fused in (True, False):
        torch.manual_seed(0)
        weight = torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last)
        params = [torch.nn.Parameter(p) for p in (weight, torch.randn(5, 3, dtype=torch.complex64), torch.randn(1, 4))]
        optimizer = OrthAdam(params, lr=0.01, delta=0.9, view="channel", fused=fused)
        ends.append(quadratic(params, optimizer))
        params[1].grad = params[1].detach().mT.contiguous().mT
        optimizer.step()
        ends[-1] += [p.detach() for p in params]
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_tensor_that_does_not_lie_in_rows_is_left_to_lists():
    ends = []
    for fused in (True, False):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(4, 6).mT), torch.nn.Parameter(torch.randn(3, 3))]
        ends.append(quadratic(params, OrthAdam(params, lr=0.01, delta=0.9, fused=fused)))
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_state_that_lists_of_tensors_left_is_taken_up():
    """Counters on the host, and means in another order, as another layout of the model had them."""
    first = start(((6, 4, 3, 3), (4,)), torch.float32)
    before = OrthAdam(first, lr=0.01, delta=0.9, fused=False)
    quadratic(first, before)
    second = [
        torch.nn.Parameter(p.detach().clone(memory_format=torch.channels_last) if p.ndim == 4 else p.detach().clone())
        for p in first
    ]
    after = OrthAdam(second, lr=0.01, delta=0.9, fused=True)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for param in after.param_groups:
        param["fused"] = True
    for one, other in zip(quadratic(first, before), quadratic(second, after), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_learning_rate_may_be_a_tensor_that_changes():
    rate = torch.tensor(0.01)
    ends = []
    for lr in (rate, 0.01):
        params = start(((6, 4), (4,)), torch.float32)
        optimizer = AdamP(params, lr=lr, weight_decay=0.1, fused=True)
        quadratic(params, optimizer)
        rate.fill_(0.02)
        optimizer.param_groups[0]["lr"] = lr if lr is rate else 0.02
        ends.append(quadratic(params, optimizer))
        rate.fill_(0.01)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


@pytest.mark.parametrize(
    ("dtype", "options"), [(torch.float64, {}), (torch.bfloat16, {}), (torch.float32, {"differentiable": True})]
)
def test_what_kernels_cannot_do_is_refused_in_a_sentence(dtype, options):
    params = start(((3, 2),), dtype)
    params[0].grad = torch.ones(3, 2, dtype=dtype)
    before = params[0].detach().clone()
    with pytest.raises(RuntimeError, match="fused=True is for 32-bit numbers"):
        OrthAdam(params, fused=True, **options).step()
    assert torch.equal(before, params[0])


def test_equal_numbers_give_equal_steps():
    one, other = (walk(lambda params: AdamP(params, fused=True), 3, SHAPES, torch.float32) for _ in range(2))
    assert torch.equal(one, other)
