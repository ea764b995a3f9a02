"""The solvers have the order they declare, keep their tolerance, and pass gradients on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from nnarena.nn.solvers import DORMAND_PRINCE, FIXED, SOLVERS, Tableau, _stages, advance, check_solver, dopri5

B, H = 3, 4


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def problem():
    """A nonlinear equation, a start, and a time of its own for every sample."""
    generator = torch.Generator().manual_seed(0)
    U = 0.5 * torch.randn(H, H, dtype=torch.float64, generator=generator)
    h = torch.randn(B, H, dtype=torch.float64, generator=generator)

    def f(h):
        return 1.5 * (h @ U + 0.3).tanh() - h

    return f, h, tensor([[1.0], [2.5], [0.4]])


def pendulum():
    """Angle and speed; its error is in proportion to step^order from moderate steps on."""

    def f(h):
        return torch.stack([h[:, 1], -h[:, 0].sin()], 1)

    return f, tensor([[0.2, -0.8], [0.5, -0.5], [1.8, 0.8]]), tensor([[2.0], [1.0], [3.0]])


def by_scipy(f, h, dt, method="DOP853", rtol=1e-12, atol=1e-13):
    """Every sample alone, by somebody else's solver."""

    def slope(_, y):
        return f(torch.from_numpy(y)[None])[0].numpy()

    ends = [
        solve_ivp(slope, (0, float(span)), row.numpy(), method=method, rtol=rtol, atol=atol).y[:, -1]
        for row, span in zip(h, dt, strict=True)
    ]
    return torch.from_numpy(np.stack(ends))


def slope_of_error(steps, errors):
    return -np.polyfit(np.log(steps), np.log(errors), 1)[0]


@pytest.mark.parametrize("name", FIXED)
def test_the_order_is_the_declared_one(name):
    f, h, dt = pendulum()
    exact = by_scipy(f, h, dt)
    steps = [16, 32, 64, 128]
    errors = [float((advance(f, h, dt, n, name) - exact).abs().max()) for n in steps]
    assert abs(slope_of_error(steps, errors) - FIXED[name].order) < 0.2


@pytest.mark.parametrize(("weights", "order"), [("weights", 5), ("lower", 4)])
def test_the_two_methods_of_dormand_and_prince_have_orders_five_and_four(weights, order):
    f, h, dt = pendulum()
    exact = by_scipy(f, h, dt)
    steps, errors = [24, 32, 48, 64], []
    for n in steps:
        y = h
        for _ in range(n):
            stages = _stages(DORMAND_PRINCE, f, y, dt / n)
            parts = zip(getattr(DORMAND_PRINCE, weights), stages, strict=True)
            y = y + dt / n * sum(b * k for b, k in parts)
        errors.append(float((y - exact).abs().max()))
    assert abs(slope_of_error(steps, errors) - order) < 0.2
    assert DORMAND_PRINCE.order == 5


@pytest.mark.parametrize("name", FIXED)
def test_a_number_is_the_same_time_for_all_and_no_time_changes_nothing(name):
    f, h, _ = problem()
    spans = torch.full((B, 1), 0.7, dtype=torch.float64)
    torch.testing.assert_close(advance(f, h, 0.7, 3, name), advance(f, h, spans, 3, name))
    assert torch.equal(advance(f, h, 0.0, 3, name), h)


@pytest.mark.parametrize("name", FIXED)
def test_one_step_of_decay_is_the_start_of_the_exponential_series(name):
    h, z = torch.ones(1, 1, dtype=torch.float64), -0.5
    series = sum(z**power / math.factorial(power) for power in range(FIXED[name].order + 1))
    assert float(advance(lambda h: -h, h, 0.5, 1, name)) == pytest.approx(series, rel=1e-14)


@pytest.mark.parametrize("rtol", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
def test_dopri5_keeps_its_tolerance(rtol):
    f, h, dt = problem()
    exact, atol = by_scipy(f, h, dt), rtol * 1e-2

    def share(end):
        """The worst error as a part of the tolerance, which bounds each step and so the end only nearly."""
        return float(((end - exact).abs() / (atol + rtol * exact.abs())).max())

    scipys = share(by_scipy(f, h, dt, "RK45", rtol, atol))
    assert share(dopri5(f, h, dt, rtol=rtol, atol=atol)) <= max(1, 1.2 * scipys)


def test_dopri5_costs_what_scipys_does():
    f, h, dt = problem()
    calls = []

    def counted(y):
        calls.append(len(y))
        return f(y)

    dopri5(counted, h[1:2], dt[1:2], rtol=1e-6, atol=1e-8)
    ours = len(calls)
    calls.clear()
    by_scipy(counted, h[1:2], dt[1:2], "RK45", 1e-6, 1e-8)
    assert ours <= 1.5 * len(calls)


def stiff(h):
    """Fast where h is large: a mixed batch needs different steps, and long steps fail."""
    return -20 * h * (h * h).exp()


def test_a_sample_of_dopri5_does_not_depend_on_what_shares_its_batch():
    h, dt = tensor([[0.1, 0.2], [3.0, -2.5], [0.0, 0.0], [1.0, 2.0]]), tensor([[1.0], [0.5], [2.0], [0.0]])
    together = dopri5(stiff, h, dt)
    for row in range(4):
        assert torch.equal(dopri5(stiff, h[row : row + 1], dt[row : row + 1])[0], together[row])
    assert torch.equal(together[2:], h[2:]), "at rest, and without time"


@pytest.mark.parametrize("tolerance", [1e-9, 1e-5])
def test_gradients_flow_through_accepted_steps(tolerance):
    f, h, dt = problem()
    leaves = h.clone().requires_grad_(), dt.clone().requires_grad_()
    others = h.clone().requires_grad_(), dt.clone().requires_grad_()
    dopri5(f, *leaves, rtol=tolerance, atol=tolerance).pow(2).sum().backward()
    advance(f, *others, 300).pow(2).sum().backward()
    for ours, theirs in zip(leaves, others, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=10 * tolerance, atol=10 * tolerance)


def test_a_rejected_step_leaves_no_trace_in_the_gradient():
    infinite = []

    def cliff(h):
        """Rises evenly to 1 and stays there; a step that overshoots meets exp(800)."""
        slope = 1 - (400 * (h - 1)).exp()
        infinite.append(not bool(slope.isfinite().all()))
        return slope

    h = tensor([[0.0], [0.5]]).requires_grad_()
    end = dopri5(cliff, h, tensor([[3.0], [0.2]]))
    assert any(infinite), "the test wants a trial that fails"
    end.sum().backward()
    torch.testing.assert_close(end.detach(), tensor([[1.0], [0.7]]), rtol=1e-3, atol=0)
    assert bool(h.grad.isfinite().all())
    assert float(h.grad[1]) == pytest.approx(1, rel=1e-9)


def test_an_equation_that_cannot_be_followed_is_a_sentence():
    with pytest.raises(RuntimeError, match=r"dopri5 took 200 steps .* of the time, .* take a fixed-step solver"):
        dopri5(torch.square, tensor([[0.1], [1.0]]), 2.0, max_steps=200)


def test_what_is_not_finite_answers_nan_and_leaves_the_others_alone():
    h = tensor([[math.nan, 1.0], [0.5, 0.5], [math.inf, 0.0]])
    end = dopri5(lambda h: -h, h, 1.0)
    assert bool(end[[0, 2]].isnan().all())
    assert torch.equal(end[1:2], dopri5(lambda h: -h, h[1:2], 1.0))


@pytest.mark.parametrize(("rtol", "atol"), [(-1, 1e-3), (1e-3, 0)])
def test_wrong_tolerances_are_refused(rtol, atol):
    with pytest.raises(ValueError, match="rtol must not be negative and atol must be positive"):
        dopri5(torch.neg, torch.ones(1, 1), 1.0, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"nodes": (0, 1), "rows": ((), (0.5,)), "weights": (0.5, 0.5)}, r"row \(0.5,\) must sum to its node 1"),
        ({"nodes": (0, 1), "rows": ((), (1,)), "weights": (0.5, 0.6)}, r"weights must sum to 1"),
        ({"nodes": (0, 1), "rows": ((), (1,)), "weights": (1,)}, r"2 weights must sum to 1"),
        ({"nodes": (0, 1), "rows": ((1,), (1,)), "weights": (0.5, 0.5)}, r"2 stages need rows of 0 to 1 numbers"),
        ({"nodes": (0,), "rows": ((),), "weights": (1,), "lower": (0.9,)}, r"sum to 0.9"),
    ],
)
def test_a_wrong_tableau_is_refused_where_it_is_declared(parts, sentence):
    with pytest.raises(ValueError, match=sentence):
        Tableau(order=1, **parts)


def test_solvers_are_checked_by_name():
    for name in SOLVERS:
        check_solver(name, 1)
    with pytest.raises(ValueError, match="solver is one of euler, heun, rk4, dopri5, not 'rk5'"):
        check_solver("rk5", 1)
    with pytest.raises(ValueError, match="unfolds must be at least 1, not 0"):
        check_solver("rk4", 0)
