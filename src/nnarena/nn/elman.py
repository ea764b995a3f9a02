"""Elman's simple recurrent network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_, orthogonal_
from nnarena.nn.recurrent import Recurrent, one_chunk

Constants = tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class Elman(Recurrent):
    """Simple recurrent network with one bias: the hidden layer sees itself a step ago.

        h ← φ(W x_t + U h + b),   φ = tanh or relu

    Weights are laid out as in `torch.nn.RNN`; that one adds a second bias, which changes the count of parameters and
    nothing else. Start values: Glorot for W, orthonormal columns for U, zero bias.

    Reference: Elman 1990.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        activation: str = "tanh",
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}.")
        self.activation = activation
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.weight_ih)
        orthogonal_(self.weight_hh)
        nn.init.zeros_(self.bias)

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.hidden_size)

    def constants(self) -> Constants:
        return self.weight_ih, self.weight_hh.t(), self.bias, ACTIVATIONS[self.activation]

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, constants[0], constants[2])

    @staticmethod
    def step(constants: Constants, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = constants[3](u + state @ constants[1])
        return h, h

    def native(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        weights = one_chunk([self.weight_ih, self.weight_hh, self.bias, torch.zeros_like(self.bias)])
        loop = torch.rnn_tanh if self.activation == "tanh" else torch.rnn_relu  # type: ignore[attr-defined]
        output, h = loop(x, state.unsqueeze(0), weights, True, 1, 0.0, self.training, False, True)
        return output, h[0]


@model("elman", reference="Elman 1990, Finding structure in time, Cognitive Science 14")
def elman(spec: TaskSpec, *, hidden_size: int = 138, activation: Literal["tanh", "relu"] = "tanh") -> nn.Module:
    """Elman's simple recurrent network: the hidden layer sees itself a step ago.

        h ← φ(W x_t + U h + b)

    The last h passes a dense layer. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units
        activation: φ
    """
    layer = Elman(spec.input_size + spec.timespans, hidden_size, activation=activation)
    return SequenceModel(layer, spec)
