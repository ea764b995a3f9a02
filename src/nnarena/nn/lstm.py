"""LSTM: long short-term memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_, orthogonal_
from nnarena.nn.recurrent import Recurrent, one_chunk

Constants = tuple[Tensor, Tensor, Tensor]


class LSTM(Recurrent):
    """Long short-term memory with one bias.

        i, f, g, o = split(W x_t + U h + b)
        c ← σ(f) · c + σ(i) · tanh(g)
        h ← σ(o) · tanh(c)

    Weights are laid out as in `torch.nn.LSTM` (gates i, f, g, o); that one adds a second bias, which changes the
    count of parameters and nothing else. Start values: Glorot for W, orthonormal columns for U, zero bias, but one for
    the forget gate, so that a fresh cell remembers.

    Reference: Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.weight_ih)
        orthogonal_(self.weight_hh)
        with torch.no_grad():
            self.bias.zero_()
            self.bias[self.hidden_size : 2 * self.hidden_size] = 1

    def initial_state(self, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
        zeros = like.new_zeros(batch, self.hidden_size)
        return zeros, zeros

    def constants(self) -> Constants:
        return self.weight_ih, self.weight_hh.t(), self.bias

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, constants[0], constants[2])

    @staticmethod
    def step(constants: Constants, u: Tensor, state: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        h, c = state
        i, f, g, o = (u + h @ constants[1]).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h, c), h

    def native(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        weights = one_chunk([self.weight_ih, self.weight_hh, self.bias, torch.zeros_like(self.bias)])
        layers = tuple(part.unsqueeze(0) for part in state)
        output, h, c = torch.lstm(x, layers, weights, True, 1, 0.0, self.training, False, True)  # type: ignore[attr-defined]
        return output, (h[0], c[0])


@model("lstm", reference="Hochreiter and Schmidhuber 1997, Long short-term memory, Neural Computation 9")
def lstm(spec: TaskSpec, *, hidden_size: int = 64) -> nn.Module:
    """Long short-term memory: gates decide what a cell keeps, takes in and shows.

        i, f, g, o = split(W x_t + U h + b)
        c ← σ(f) · c + σ(i) · tanh(g)
        h ← σ(o) · tanh(c)

    The last h passes a dense layer. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units; the published arena has 64
    """
    return SequenceModel(LSTM(spec.input_size + spec.timespans, hidden_size), spec)
