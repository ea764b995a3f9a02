"""GRU: gated recurrent unit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_, orthogonal_
from nnarena.nn.recurrent import Recurrent, one_chunk

Constants = tuple[Tensor, Tensor, Tensor, Tensor]


class GRU(Recurrent):
    """Gated recurrent unit with two biases, the reset gate applied after the matrix product.

        r, z, n = split(W x_t + b),   r', z', n' = split(U h + b')
        r ← σ(r + r'),  z ← σ(z + z'),  n ← tanh(n + r · n')
        h ← (1 − z) · n + z · h

    The weights are those of `torch.nn.GRU` (gates r, z, n). Start values: Glorot for W, orthonormal columns for U,
    zero biases.

    Reference: Cho et al. 2014; this form of the reset gate is cuDNN's.
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
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden_size, hidden_size, device=device, dtype=dtype))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden_size, device=device, dtype=dtype))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.weight_ih)
        orthogonal_(self.weight_hh)
        nn.init.zeros_(self.bias_ih)
        nn.init.zeros_(self.bias_hh)

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.hidden_size)

    def constants(self) -> Constants:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, constants[0], constants[2])

    @staticmethod
    def step(constants: Constants, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        r, z, n = u.chunk(3, -1)
        r_h, z_h, n_h = nn.functional.linear(state, constants[1], constants[3]).chunk(3, -1)
        z = (z + z_h).sigmoid()
        n = (n + (r + r_h).sigmoid() * n_h).tanh()
        h = n + z * (state - n)
        return h, h

    def native(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        weights = one_chunk([self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh])
        output, h = torch.gru(x, state.unsqueeze(0), weights, True, 1, 0.0, self.training, False, True)  # type: ignore[attr-defined]
        return output, h[0]


@model("gru", reference="Cho et al. 2014, Learning phrase representations using RNN encoder-decoder, EMNLP")
def gru(spec: TaskSpec, *, hidden_size: int = 80) -> nn.Module:
    """Gated recurrent unit: two gates blend the old state with a new proposal.

        r = σ(W_r x_t + U_r h + b_r),   z = σ(W_z x_t + U_z h + b_z)
        n = tanh(W_n x_t + b_n + r · (U_n h + b'_n))
        h ← (1 − z) · n + z · h

    The last h passes a dense layer. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units; the published arena has 80
    """
    return SequenceModel(GRU(spec.input_size + spec.timespans, hidden_size), spec)
