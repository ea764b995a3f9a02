"""AdamP and SGDP: their authors' package step by step, members apart, and ordinary torch optimizers."""

from __future__ import annotations

import copy

import adamp
import pytest
import torch
from optim_helpers import SHAPES, gradients, norm_growth, start, walk

from nnarena.core.components import catalogue
from nnarena.optim import SGDP, AdamP

ADAMP = [
    {},
    {"weight_decay": 0.1},
    {"nesterov": True},
    {"nesterov": True, "weight_decay": 0.1, "wd_ratio": 0.5},
    {"delta": 0.5, "betas": (0.5, 0.8), "eps": 1e-3, "weight_decay": 0.3},
    {"delta": 0.0, "weight_decay": 0.1},
]
SGDPS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.5, "dampening": 0.3, "delta": 0.5, "wd_ratio": 0.7, "weight_decay": 0.3},
]
BOTH = [(AdamP, options) for options in ADAMP] + [(SGDP, options) for options in SGDPS]


@pytest.mark.parametrize(("kind", "options"), BOTH)
def test_they_are_their_authors_step_by_step(kind, options):
    ours = walk(lambda params: kind(params, lr=0.01, **options))
    theirs = walk(lambda params: getattr(adamp, kind.__name__)(params, lr=0.01, **options))
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    plain = walk(lambda params: kind(params, lr=0.01, **options | {"delta": 0.0}))
    assert options.get("delta") == 0 or not torch.allclose(ours, plain), "nothing was projected: this shows nothing"


@pytest.mark.parametrize("kind", [AdamP, SGDP])
def test_single_precision_is_theirs_to_rounding(kind):
    ours = walk(lambda params: kind(params, lr=0.01, weight_decay=0.1), dtype=torch.float32)
    theirs = walk(lambda params: getattr(adamp, kind.__name__)(params, lr=0.01, weight_decay=0.1), dtype=torch.float32)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_without_projection_adamp_is_adamw_and_sgdp_is_sgd():
    ours = walk(lambda params: AdamP(params, lr=0.01, delta=0.0, weight_decay=0.1))
    assert torch.allclose(ours, walk(lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)), rtol=1e-12)
    for options in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}):
        ours = walk(lambda params, o=options: SGDP(params, lr=0.01, delta=0.0, **o))
        assert torch.allclose(ours, walk(lambda params, o=options: torch.optim.SGD(params, lr=0.01, **o)), rtol=1e-12)


@pytest.mark.parametrize(("kind", "options"), BOTH)
def test_a_population_of_two_is_two_runs(kind, options):
    def make(params):
        return kind(params, lr=0.01, **options)

    apart = [walk(make, seed=seed) for seed in (1, 2)]
    stacks = [
        torch.nn.Parameter(torch.stack([one.detach(), two.detach()]))
        for one, two in zip(start(seed=1), start(seed=2), strict=True)
    ]
    optimizer = make(stacks)
    optimizer.population_dims = 1
    for step in range(20):
        grads = [gradients([stack.detach()[row] for stack in stacks], step, row + 1) for row in range(2)]
        for stack, *rows in zip(stacks, *grads, strict=True):
            stack.grad = torch.stack(rows)
        optimizer.step()
        for row in range(2):
            numbers = torch.cat([stack.detach()[row].flatten() for stack in stacks])
            assert torch.allclose(numbers, apart[row][step], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "plain", "options"),
    [(AdamP, torch.optim.Adam, {"lr": 0.01}), (SGDP, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})],
)
def test_scale_invariant_weights_grow_more_slowly(kind, plain, options):
    fast, slow = (norm_growth(lambda params, k=k: k(params, **options)) for k in (plain, kind))
    assert fast - 1 > 0.1 and slow - 1 < 0.2 * (fast - 1)


@pytest.mark.parametrize(("kind", "options"), [(AdamP, {"nesterov": True}), (SGDP, {"momentum": 0.9})])
def test_one_by_one_with_a_tensor_as_rate_and_uphill_it_is_the_same(kind, options):
    together = walk(lambda params: kind(params, lr=0.01, **options))
    assert torch.equal(together, walk(lambda params: kind(params, lr=0.01, foreach=False, **options)))
    rate = torch.tensor(0.01, dtype=torch.float64)
    assert torch.allclose(together, walk(lambda params: kind(params, lr=rate, **options)), rtol=1e-12)
    if kind is AdamP:
        counted = walk(lambda params: AdamP(params, lr=0.01, capturable=True, **options))
        assert torch.allclose(together, counted, rtol=1e-5)
    up, down = (start(), start())
    one, two = kind(up, lr=0.01, maximize=True, **options), kind(down, lr=0.01, **options)
    for a, b, g in zip(up, down, gradients(up, 1), strict=True):
        a.grad, b.grad = g, -g
    one.step()
    two.step()
    assert all(torch.equal(a, b) for a, b in zip(up, down, strict=True))


@pytest.mark.parametrize("kind", [AdamP, SGDP])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_they_go_on_from_their_state_bit_for_bit(kind, dtype):
    params = start(dtype=dtype)
    optimizer = kind(params, lr=0.01)
    for number in range(8):
        if number == 4:
            again = [torch.nn.Parameter(param.detach().clone()) for param in params]
            other = kind(again)
            other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        grads = list(gradients(params, number))
        for some, moved in ((params, optimizer), *([(again, other)] if number >= 4 else [])):
            for param, grad in zip(some, grads, strict=True):
                param.grad = grad.clone()
            moved.step()
    assert all(torch.equal(one, two) and one.isfinite().all() for one, two in zip(params, again, strict=True))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (AdamP, "lr", -1),
        (AdamP, "betas", (1.0, 0.9)),
        (AdamP, "wd_ratio", -0.1),
        (SGDP, "momentum", 1.0),
        (SGDP, "dampening", "no"),
        (SGDP, "delta", -0.1),
    ],
)
def test_a_value_out_of_range_is_named(kind, name, value):
    with pytest.raises(ValueError) as error:
        kind(start(), **{name: value})
    text = str(error.value)
    assert text.startswith(f"{kind.__name__}: {name} must be ") and text.endswith(f"not {value!r}.")


@pytest.mark.parametrize("name", ["adamp", "sgdp"])
def test_the_registered_ones_have_the_defaults_and_pass_every_option_on(name):
    component = catalogue("optimizer")[name]
    defaults = component.resolve({})
    assert defaults.items() <= component.load()(start()).defaults.items()
    others = {key: (not value if isinstance(value, bool) else 0.25) for key, value in defaults.items()}
    others |= {"betas": (0.25, 0.5)} if "betas" in others else {}
    assert others.items() <= component.load()(start(), **others).defaults.items()


@pytest.mark.parametrize("kind", [AdamP, SGDP])
def test_the_device_is_never_asked_for_a_number(kind):
    params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES]  # these have no numbers
    optimizer = kind(params, nesterov=True, weight_decay=0.1)
    optimizer.param_groups[0]["capturable"] = True
    for param in params:
        param.grad = torch.empty_like(param)
    optimizer.step()


@pytest.mark.parametrize("kind", [AdamP, SGDP])
def test_sparse_gradients_are_refused(kind):
    w = torch.nn.Parameter(torch.ones(3, 2))
    w.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(RuntimeError, match=f"{kind.__name__} cannot take sparse gradients"):
        kind([w]).step()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (AdamP, {}),
        (AdamP, {"nesterov": True, "amsgrad": True, "weight_decay": 0.5}),
        (SGDP, {"momentum": 0.9, "weight_decay": 0.5}),
        (SGDP, {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_gradients_flow_to_the_learning_rate(kind, options):
    def loss_after_two_steps(lr):
        tensors = [param.clone() for param in start(((3, 2), (4,)))]
        optimizer = kind(tensors, lr=lr, differentiable=True, **options)
        for step in range(2):
            for tensor, grad in zip(tensors, gradients(start(((3, 2), (4,))), step), strict=True):
                tensor.grad = grad
            optimizer.step()
        return sum((tensor**3).sum() for tensor in tensors)

    assert torch.autograd.gradcheck(loss_after_two_steps, torch.tensor(0.1, dtype=torch.float64, requires_grad=True))


def test_amsgrad_never_lets_the_squares_fall():
    plain, kept = (
        walk(lambda params, on=on: AdamP(params, lr=0.01, betas=(0.5, 0.8), amsgrad=on)) for on in (False, True)
    )
    assert torch.equal(plain[0], kept[0]) and not torch.allclose(plain, kept)
    params = start()
    optimizer = AdamP(params, amsgrad=True, betas=(0.5, 0.8))
    tops = [torch.zeros_like(p) for p in params]
    for step in range(5):
        for param, grad in zip(params, gradients(params, step), strict=True):
            param.grad = grad
        optimizer.step()
        states = [optimizer.state[param] for param in params]
        tops = [torch.maximum(top, state["exp_avg_sq"]) for top, state in zip(tops, states, strict=True)]
        assert all(torch.equal(top, state["max_exp_avg_sq"]) for top, state in zip(tops, states, strict=True))
