"""CT-RNN: a continuous-time recurrent network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_, orthogonal_
from nnarena.nn.recurrent import Recurrent
from nnarena.nn.solvers import Slope, advance, check_solver, dopri5

Solve = Callable[[Slope, Tensor, Tensor | float], Tensor]
Constants = tuple[Tensor, Tensor, Tensor, Tensor, float, Solve, float]


class CTRNN(Recurrent):
    """A continuous-time recurrent network: the state follows a differential equation, the input is held in between.

        dh/dt = s · tanh(W x_t + U h + b) − h / τ,   from t to t + Δt

    s (H) is learned, τ is fixed. `solver` is "euler", "heun" or "rk4" with `unfolds` equal steps per Δt, or "dopri5",
    which chooses its steps to keep within `rtol` and `atol` and ignores `unfolds`. The explicit solvers need
    Δt / unfolds of no more than about 2 τ. W is `weight_ih` (H, F), U is `weight_hh` (H, H). Start values: Glorot for
    W, orthogonal for U, zero b, one for s.

    State and output are h (B, H). `timespans` are Δt; 1 without them.

    The published arena multiplies h by its constant τ instead of dividing; its τ is 1, where both are the same.

    Reference: Funahashi and Nakamura 1993; as a layer with solvers: Lechner and Hasani 2020.
    """

    continuous = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        solver: str = "rk4",
        unfolds: int = 3,
        tau: float = 1.0,
        rtol: float = 1e-2,
        atol: float = 1e-4,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        check_solver(solver, unfolds)
        for name, value in (("tau", tau), ("rtol", rtol), ("atol", atol)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, not {value}.")
        self.solver = solver
        self.unfolds = unfolds
        self.repeats = 1 if solver == "dopri5" else unfolds
        self.tau = tau
        self.rtol = rtol
        self.atol = atol
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.scale = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.weight_ih)
        orthogonal_(self.weight_hh)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.scale)

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.hidden_size)

    def constants(self, unfolds: int = 1) -> Constants:
        """With a solver that takes so many of its steps at a time."""
        if self.solver == "dopri5":
            solve = functools.partial(dopri5, rtol=self.rtol, atol=self.atol)
        else:
            solve = functools.partial(advance, unfolds=unfolds, solver=self.solver)
        return self.weight_ih, self.weight_hh.t(), self.bias, self.scale, self.tau, solve, 1 / self.repeats

    def project(
        self, constants: Constants, x: Tensor, timespans: Tensor | None
    ) -> Projection | tuple[Projection, Tensor]:
        drive = Projection(x, constants[0], constants[2])
        return drive if timespans is None else (drive, spans(x, timespans) / self.repeats)

    @staticmethod
    def step(constants: Constants, u: Tensor | tuple[Tensor, Tensor | float], state: Tensor) -> tuple[Tensor, Tensor]:
        _, U, _, scale, tau, solve, always = constants
        drive, dt = u if isinstance(u, tuple) else (u, always)
        scale = scale.expand_as(drive)  # so that its gradient is summed over the batch once a step, not at every stage

        def slope(h: Tensor) -> Tensor:
            return scale * (drive + h @ U).tanh() - (h if tau == 1 else h / tau)

        h = solve(slope, state, dt)
        return h, h

    def extra_repr(self) -> str:
        how = "solver=dopri5" if self.solver == "dopri5" else f"solver={self.solver}, unfolds={self.unfolds}"
        return f"{super().extra_repr()}, {how}"


def spans(x: Tensor, timespans: Tensor) -> Tensor:
    """The time of every step, (B, T, 1), in the type of x (B, T, F)."""
    return timespans.to(x.dtype).unsqueeze(-1)


@model(
    "ct_rnn",
    reference="Funahashi and Nakamura 1993, Approximation of dynamical systems by continuous time recurrent neural "
    "networks, Neural Networks 6",
)
def ct_rnn(
    spec: TaskSpec,
    *,
    hidden_size: int = 128,
    solver: Literal["euler", "heun", "rk4", "dopri5"] = "rk4",
    unfolds: int = 3,
) -> nn.Module:
    """Continuous-time recurrent network: the state follows a differential equation between the inputs.

        dh/dt = s · tanh(W x_t + U h + b) − h,   over the time Δt of every step

    The last h passes a dense layer. Elapsed time, where a task gives it, is Δt; elsewhere Δt is 1.

    Options:
        hidden_size: units; the published arena has 128
        solver: how the equation is solved: fixed steps of order 1, 2 or 4, or adaptive (dopri5)
        unfolds: fixed steps per input; the published arena has 3; dopri5 ignores it
    """
    return SequenceModel(CTRNN(spec.input_size, hidden_size, solver=solver, unfolds=unfolds), spec)
