"""Solvers of dh/dt = f(h), for cells whose time is continuous.

`advance` takes a fixed number of equal steps: Euler, Heun or the classical Runge-Kutta method. `dopri5` chooses its
steps by the error it estimates. Both are differentiated by autograd, step by step.

B batch, H hidden units. The state h is (B, H), f maps a state to its slope, and the time dt to go is a number or
(B, 1): every sample has its own. f does not depend on time, because a cell holds its input during a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Slope = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Tableau:
    """An explicit Runge-Kutta method, as Butcher wrote it.

        k_i = f(h + dt · Σ_j a_ij k_j),   h ← h + dt · Σ_i b_i k_i

    order     the error over a fixed time shrinks like step^order
    nodes     c_i, when within the step stage i is taken
    rows      a_ij, of which only j < i are written
    weights   b_i
    lower     b_i of a method of lower order from the same stages, where there is one: their difference is the error
    """

    order: int
    nodes: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    lower: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        stages = len(self.nodes)
        if [len(row) for row in self.rows] != list(range(stages)):
            raise ValueError(f"{stages} stages need rows of 0 to {stages - 1} numbers, not {self.rows}.")
        for node, row in zip(self.nodes, self.rows, strict=True):
            if not math.isclose(sum(row), node, abs_tol=1e-12):
                raise ValueError(f"The row {row} must sum to its node {node}, not to {sum(row)}.")
        for weights in (self.weights, self.lower or self.weights):
            if len(weights) != stages or not math.isclose(sum(weights), 1, abs_tol=1e-12):
                raise ValueError(f"{stages} weights must sum to 1; {weights} sum to {sum(weights)}.")

    @property
    def error(self) -> tuple[float, ...]:
        """The weights of the difference between the two methods."""
        return tuple(b - low for b, low in zip(self.weights, self.lower or self.weights, strict=True))


FIXED = {
    "euler": Tableau(order=1, nodes=(0,), rows=((),), weights=(1,)),
    "heun": Tableau(order=2, nodes=(0, 1), rows=((), (1,)), weights=(1 / 2, 1 / 2)),
    "rk4": Tableau(
        order=4,
        nodes=(0, 1 / 2, 1 / 2, 1),
        rows=((), (1 / 2,), (0, 1 / 2), (0, 0, 1)),
        weights=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
    ),
}

# Dormand and Prince 1980, A family of embedded Runge-Kutta formulae, table 2. The last stage is the new state's slope.
_FIFTH = (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
DORMAND_PRINCE = Tableau(
    order=5,
    nodes=(0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1),
    rows=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        _FIFTH,
    ),
    weights=(*_FIFTH, 0),
    lower=(5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40),
)

SOLVERS = (*FIXED, "dopri5")


def check_solver(solver: str, unfolds: int) -> None:
    """Raises ValueError for a solver that is not there, or a number of steps it cannot take."""
    if solver not in SOLVERS:
        raise ValueError(f"solver is one of {', '.join(SOLVERS)}, not {solver!r}.")
    if unfolds < 1:
        raise ValueError(f"unfolds must be at least 1, not {unfolds}.")


def advance(f: Slope, h: Tensor, dt: Tensor | float, unfolds: int = 1, solver: str = "rk4") -> Tensor:
    """The state after the time dt, in `unfolds` equal steps of a method in `FIXED`.

    Nothing here looks at numbers, so it compiles and vectorises. The methods are explicit: where a step is long for
    the slope (for dh/dt = −h, longer than 2 with Euler or Heun, 2.79 with rk4), the state grows without bound.
    """
    tableau, step = FIXED[solver], dt / unfolds
    for _ in range(unfolds):
        h = h + step * _mix(tableau.weights, _stages(tableau, f, h, step))
    return h


def dopri5(
    f: Slope,
    h: Tensor,
    dt: Tensor | float,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-6,
    max_steps: int = 1000,
) -> Tensor:
    """The state after the time dt by the method of Dormand and Prince, of order 5 with an error estimate of order 4.

        dh/ds = dt · f(h),  s from 0 to 1
        e = rms over H of |h₅ − h₄| / (atol + rtol · max(|h|, |h₅|)):  a step is accepted where e ≤ 1
        step ← step · clamp(0.9 · e^(−1/5), 0.2, 10)

    Every sample has its own s and its own steps: its result does not depend on what shares its batch. Samples that
    were rejected, or are done, wait with a step of zero. Gradients flow through accepted steps; the choice of the
    steps counts as constant. They are the gradients of the steps: where the equation is stiff, and the steps as long
    as stability allows, they need not be those of the equation. A sample that is not finite, or has no finite slope,
    answers NaN, as a fixed step would.

    The steps depend on numbers, so `torch.compile` breaks its graph here, `torch.vmap` cannot, and a GPU waits.

    Reference: Dormand and Prince 1980; step control: Hairer, Nørsett and Wanner 1993, Solving ODEs I, II.4.
    """
    if rtol < 0 or atol <= 0:
        raise ValueError(f"rtol must not be negative and atol must be positive, not {rtol} and {atol}.")
    dt = torch.as_tensor(dt, dtype=h.dtype, device=h.device).expand(len(h), 1)
    slope = f(h)
    lost = ~(h + dt * slope).detach().isfinite().all(-1, keepdim=True)
    h = torch.where(lost, math.nan, h)
    s = lost.to(h.dtype)
    step = _first_step(h, dt * slope, rtol, atol)
    for _ in range(max_steps):
        if bool((s >= 1).all()):
            return h
        step = torch.minimum(step, 1 - s)
        after, last, error = _trial(f, h, slope, dt, step, rtol, atol)
        accepted = (error <= 1) | (s >= 1)
        taken = torch.where(accepted, step, 0)
        if not bool(accepted.all()):  # once more, so that no rejected number, which may be infinite, has a gradient
            after, last, _ = _trial(f, h, slope, dt, taken, rtol, atol)
        h, slope = after, last
        s = torch.where(accepted & (step >= 1 - s), 1, s + taken)
        step = step * (0.9 * error.nan_to_num(nan=math.inf) ** -0.2).clamp(0.2, 10)
    raise RuntimeError(
        f"dopri5 took {max_steps} steps and is not there yet (worst sample: {float(s.min()):.3g} of the time, "
        f"step {float(step[s < 1].min()):.2g}). The equation is stiff or grows without bound for these numbers: "
        f"allow a larger rtol ({rtol:g}) or atol ({atol:g}), or take a fixed-step solver ({', '.join(FIXED)})."
    )


def _first_step(h: Tensor, slope: Tensor, rtol: float, atol: float) -> Tensor:
    """A cautious start: a step of fifth order whose error is 1 % of the allowed one if all derivatives are as large
    as the first."""
    size = _rms(slope.detach() / (atol + rtol * h.detach().abs()))
    return (0.01 / size).nan_to_num(nan=1, posinf=1).pow(0.2).clamp(max=1)


def _trial(
    f: Slope, h: Tensor, slope: Tensor, dt: Tensor, step: Tensor, rtol: float, atol: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One step: the new state, its slope, and how large its error is as a part of the allowed one, (B, 1)."""
    span = step * dt
    stages = _stages(DORMAND_PRINCE, f, h, span, slope)
    after = h + span * _mix(DORMAND_PRINCE.weights, stages)
    with torch.no_grad():
        allowed = atol + rtol * torch.maximum(h.abs(), after.abs())
        error = _rms(span * _mix(DORMAND_PRINCE.error, stages) / allowed)
    return after, stages[-1], error


def _stages(tableau: Tableau, f: Slope, h: Tensor, step: Tensor | float, first: Tensor | None = None) -> list[Tensor]:
    """k_1 … k_n; `first` is k_1 where it is known."""
    stages = [f(h) if first is None else first]
    for row in tableau.rows[1:]:
        stages.append(f(h + step * _mix(row, stages)))
    return stages


def _mix(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    """Σ w_i k_i without the terms that are zero."""
    (weight, slope), *rest = [(w, k) for w, k in zip(weights, slopes, strict=True) if w]
    total = slope if weight == 1 else weight * slope
    for weight, slope in rest:
        total = torch.add(total, slope, alpha=weight)
    return total


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True).sqrt()
