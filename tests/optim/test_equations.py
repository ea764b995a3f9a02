"""Every optimizer of the classic line does what its equation says: five steps by hand, in plain Python numbers."""

from __future__ import annotations

import math

import pytest
import torch

from nnarena.core.components import catalogue

START = [1.0, -2.0, 0.5]
STEPS = 5


def slope(theta: list[float], step: int) -> list[float]:
    """The gradient of a bent valley that shifts from step to step."""
    return [4 * x**3 * 0.1 + 0.3 * x + math.sin(1.7 * step + place) for place, x in enumerate(theta)]


def sgd(x, g, s, t, lr=0.05):
    return x - lr * g


def heavy_ball(x, g, s, t, lr=0.05, mu=0.9):
    s["v"] = mu * s.get("v", 0) + g
    return x - lr * s["v"]


def look_ahead(x, g, s, t, lr=0.05, mu=0.9):
    s["v"] = mu * s.get("v", 0) + g
    return x - lr * (g + mu * s["v"])


def adagrad(x, g, s, t, lr=0.05, eps=1e-3):
    s["v"] = s.get("v", 0) + g * g
    return x - lr * g / (math.sqrt(s["v"]) + eps)


def adadelta(x, g, s, t, lr=0.7, rho=0.8, eps=1e-3):
    s["v"] = rho * s.get("v", 0) + (1 - rho) * g * g
    step = g * math.sqrt(s.get("u", 0) + eps) / math.sqrt(s["v"] + eps)
    s["u"] = rho * s.get("u", 0) + (1 - rho) * step * step
    return x - lr * step


def rmsprop(x, g, s, t, lr=0.05, alpha=0.8, eps=1e-3):
    s["v"] = alpha * s.get("v", 0) + (1 - alpha) * g * g
    return x - lr * g / (math.sqrt(s["v"]) + eps)


def moments(g, s, one, two):
    s["m"] = one * s.get("m", 0) + (1 - one) * g
    s["v"] = two * s.get("v", 0) + (1 - two) * g * g


def adam(x, g, s, t, lr=0.05, one=0.8, two=0.9, eps=1e-3):
    moments(g, s, one, two)
    return x - lr * s["m"] / (1 - one**t) / (math.sqrt(s["v"] / (1 - two**t)) + eps)


def adamw(x, g, s, t, lr=0.05, decay=0.1):
    return adam(x - lr * decay * x, g, s, t, lr)


def nadam(x, g, s, t, lr=0.05, one=0.8, two=0.9, eps=1e-3, psi=0.01):
    moments(g, s, one, two)
    now, then = (one * (1 - 0.5 * 0.96 ** (step * psi)) for step in (t, t + 1))
    s["product"] = s.get("product", 1) * now
    m, g = s["m"] / (1 - s["product"] * then), g / (1 - s["product"])
    return x - lr * (then * m + (1 - now) * g) / (math.sqrt(s["v"] / (1 - two**t)) + eps)


BETAS = {"betas": (0.8, 0.9), "eps": 1e-3}
BY_HAND = {
    "sgd": (sgd, {}),
    "momentum": (heavy_ball, {}),
    "nesterov": (look_ahead, {}),
    "adagrad": (adagrad, {"eps": 1e-3}),
    "adadelta": (adadelta, {"lr": 0.7, "rho": 0.8, "eps": 1e-3}),
    "rmsprop": (rmsprop, {"alpha": 0.8, "eps": 1e-3}),
    "adam": (adam, BETAS),
    "adamw": (adamw, BETAS | {"weight_decay": 0.1}),
    "nadam": (nadam, BETAS | {"momentum_decay": 0.01}),
}

NEAR = {"nadam": 1e-7}  # torch keeps μ₁ ⋯ μ_t in float32


def walk(name, options):
    """The parameters after every step of the registered optimizer, in float64."""
    component = catalogue("optimizer")[name]
    param = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = component.load()([param], **component.resolve({"lr": 0.05} | options))
    path = []
    for step in range(STEPS):
        param.grad = torch.tensor(slope(param.tolist(), step), dtype=torch.float64)
        optimizer.step()
        path.append(param.tolist())
    return path


def by_hand(rule):
    theta, kept, path = list(START), [{} for _ in START], []
    for step in range(STEPS):
        gradient = slope(theta, step)
        theta = [rule(*parts, step + 1) for parts in zip(theta, gradient, kept, strict=True)]
        path.append(theta)
    return path


@pytest.mark.parametrize("name", BY_HAND)
def test_five_steps_equal_the_equation(name):
    rule, options = BY_HAND[name]
    for ours, theirs in zip(walk(name, options), by_hand(rule), strict=True):
        assert ours == pytest.approx(theirs, rel=NEAR.get(name, 1e-12), abs=1e-14)


def test_the_whole_line_is_checked():
    from_torch = {
        name for name, item in catalogue("optimizer").items() if item.module.endswith(("from_torch", "momentum"))
    }
    assert from_torch == BY_HAND.keys()


def test_textbooks_momentum_is_the_same_path():
    theta, v = list(START), [0.0] * 3
    for step, ours in enumerate(walk("momentum", {})):
        v = [0.9 * old + 0.05 * g for old, g in zip(v, slope(theta, step), strict=True)]
        theta = [x - part for x, part in zip(theta, v, strict=True)]
        assert ours == pytest.approx(theta, rel=1e-12)


def test_textbooks_nesterov_looks_ahead_to_where_ours_stands():
    theta, v = list(START), [0.0] * 3
    for step, ours in enumerate(walk("nesterov", {})):
        ahead = [x - 0.9 * part for x, part in zip(theta, v, strict=True)]
        v = [0.9 * old + 0.05 * g for old, g in zip(v, slope(ahead, step), strict=True)]
        theta = [x - part for x, part in zip(theta, v, strict=True)]
        assert ours == pytest.approx([x - 0.9 * part for x, part in zip(theta, v, strict=True)], rel=1e-12)
