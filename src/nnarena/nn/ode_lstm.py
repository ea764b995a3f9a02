"""ODE-LSTM: an LSTM whose output is the input of a continuous-time network."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.ct_rnn import CTRNN, spans
from nnarena.nn.ct_rnn import Constants as FlowConstants
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_, orthogonal_
from nnarena.nn.recurrent import Recurrent

Constants = tuple[Tensor, Tensor, Tensor, FlowConstants]


class ODELSTM(Recurrent):
    """A long short-term memory whose hidden state flows between the inputs.

        i, f, g, o = split(W x_t + U h + b)
        c ← σ(f + 3) · c + σ(i) · tanh(g)
        v = σ(o) · tanh(c)
        dh/dt = s · tanh(W' v + U' h + b') − h,   from t to t + Δt

    The memory c takes one step per input, whatever its time; h is the state of a `CTRNN`, the module `flow`, that
    reads v. Gates lie in the order i, f, g, o, as in our `LSTM` (the published arena has g, i, f, o). The 3 is a
    constant beside the learned bias, so that a fresh cell remembers. `solver` and `unfolds` are those of `CTRNN`. Start
    values: Glorot for W, orthonormal columns for U, zero b; `flow` has its own.

    The output is h (B, H); the state is (h, c), each (B, H), in the order of `torch.nn.LSTM`. `timespans` are Δt; 1
    without them.

    Reference: Lechner and Hasani 2020, Learning long-term dependencies in irregularly-sampled time series.
    """

    continuous = True
    forget_bias = 3.0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        solver: str = "euler",
        unfolds: int = 4,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size, device=device, dtype=dtype))
        self.flow = CTRNN(hidden_size, hidden_size, solver=solver, unfolds=unfolds, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.weight_ih)
        orthogonal_(self.weight_hh)
        nn.init.zeros_(self.bias)
        self.flow.reset_parameters()

    def initial_state(self, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
        zeros = like.new_zeros(batch, self.hidden_size)
        return zeros, zeros

    def constants(self) -> Constants:
        return self.weight_ih, self.weight_hh.t(), self.bias, self.flow.constants(self.flow.unfolds)

    def project(
        self, constants: Constants, x: Tensor, timespans: Tensor | None
    ) -> Projection | tuple[Projection, Tensor]:
        gates = Projection(x, constants[0], constants[2])
        return gates if timespans is None else (gates, spans(x, timespans))

    @staticmethod
    def step(
        constants: Constants, u: Tensor | tuple[Tensor, Tensor], state: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        _, U, _, flow = constants
        (gates, dt), (h, c) = u if isinstance(u, tuple) else (u, 1.0), state
        i, f, g, o = (gates + h @ U).chunk(4, -1)
        c = (f + ODELSTM.forget_bias).sigmoid() * c + i.sigmoid() * g.tanh()
        v = o.sigmoid() * c.tanh()
        h, _ = CTRNN.step(flow, (nn.functional.linear(v, flow[0], flow[2]), dt), h)
        return (h, c), h


@model(
    "ode_lstm",
    reference="Lechner and Hasani 2020, Learning long-term dependencies in irregularly-sampled time series, "
    "arXiv 2006.04418",
)
def ode_lstm(
    spec: TaskSpec,
    *,
    hidden_size: int = 64,
    solver: Literal["euler", "heun", "rk4", "dopri5"] = "euler",
    unfolds: int = 4,
) -> nn.Module:
    """ODE-LSTM: a gated memory that steps with the input, and a hidden state that flows with the time.

        i, f, g, o = split(W x_t + U h + b)
        c ← σ(f + 3) · c + σ(i) · tanh(g),   v = σ(o) · tanh(c)
        dh/dt = s · tanh(W' v + U' h + b') − h,   over the time Δt of every step

    The last h passes a dense layer. Elapsed time, where a task gives it, is Δt; elsewhere Δt is 1.

    Options:
        hidden_size: units; the published arena has 64
        solver: how the equation is solved: fixed steps of order 1, 2 or 4, or adaptive (dopri5)
        unfolds: fixed steps per input; the published arena has 4; dopri5 ignores it
    """
    return SequenceModel(ODELSTM(spec.input_size, hidden_size, solver=solver, unfolds=unfolds), spec)
