"""Jordan's recurrent network: what is fed back is the output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.budget import width_or_widest
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_
from nnarena.nn.recurrent import Recurrent

Constants = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]


class Jordan(Recurrent):
    """The output, and nothing else, is seen again a step later.

        y_t = V tanh(W x_t + U s + b) + c
        s   ← μ s + y_t

    With μ = 0, the default, s is the last output, as the field writes Jordan's network today; Jordan's own state units
    fade with a μ between 0 and 1. The output of the layer is y, (B, T, O), and its state is s, (B, O): what the
    output does not tell is forgotten, which makes it weaker than Elman's where there are few outputs. The output is
    linear: the task's loss knows whether these are values or logits. Start values: Glorot, zero biases.

    Reference: Jordan 1986.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        decay: float = 0.0,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        if output_size < 1:
            raise ValueError(f"output_size must be at least 1, not {output_size}.")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, without 1, not {decay}.")
        self.output_size, self.decay = output_size, decay
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size, device=device, dtype=dtype))
        self.weight_oh = nn.Parameter(torch.empty(hidden_size, output_size, device=device, dtype=dtype))
        self.bias_h = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.weight_ho = nn.Parameter(torch.empty(output_size, hidden_size, device=device, dtype=dtype))
        self.bias_o = nn.Parameter(torch.empty(output_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.weight_ih, self.weight_oh, self.weight_ho):
            glorot_(weight)
        nn.init.zeros_(self.bias_h)
        nn.init.zeros_(self.bias_o)

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.output_size)

    def constants(self) -> Constants:
        return self.weight_ih, self.weight_oh.t(), self.bias_h, self.weight_ho.t(), self.bias_o, self.decay

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, constants[0], constants[2])

    @staticmethod
    def step(constants: Constants, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        _, U, _, V, c, decay = constants
        y = (u + state @ U).tanh() @ V + c
        return decay * state + y, y

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, {self.output_size}, decay={self.decay}"


@model("jordan", reference="Jordan 1986, Serial order: a parallel distributed processing approach, UCSD ICS 8604")
def jordan(spec: TaskSpec, *, hidden_size: int | None = None, decay: float = 0.0) -> nn.Module:
    """Jordan's recurrent network: the answer itself is seen again a step later, and nothing else is kept.

        y_t = V tanh(W x_t + U s + b) + c;   s ← μ s + y_t

    The last y is the answer. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units; none has as many as 20,000 parameters allow, but no more than 512
        decay: how much of the fed back outputs stays, μ
    """
    F, O = spec.input_size + spec.timespans, spec.output_size  # noqa: E741
    units = width_or_widest("hidden_size", hidden_size, lambda H: H * (F + 2 * O + 1) + O)
    units = min(512, units) if hidden_size is None else units
    return SequenceModel(Jordan(F, units, O, decay=decay), spec, features=0)
