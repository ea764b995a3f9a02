"""CT-GRU: a gated recurrent unit whose gates choose time scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.ct_rnn import spans
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import glorot_
from nnarena.nn.recurrent import Recurrent

Constants = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class CTGRU(Recurrent):
    """A gated recurrent unit that keeps a trace of every unit at each of M fixed time scales.

        τ_i = 10^(i/2),  i = 0 … M − 1;   h = Σ_i ĥ_i
        r_i = softmax_i(−(ln τ_r − ln τ_i)²),   ln τ_r = W_r x_t + U_r h + b_r     which scale to read
        q   = tanh(W_q x_t + U_q Σ_i r_i ĥ_i + b_q)                                what to store
        s_i = softmax_i(−(ln τ_s − ln τ_i)²),   ln τ_s = W_s x_t + U_s h + b_s     which scale to store at
        ĥ_i ← ((1 − s_i) ĥ_i + s_i q) · exp(−Δt / τ_i)

    W_r and W_s give one ln τ for every unit *and* scale, H · M numbers, as the published arena has it. The traces
    decay after the update, by the timespan that came with the step: the time since the step before. To let a step
    decay until the next one, shift the timespans by one.

    B batch, H units, M scales. The output is the new h (B, H); the state is the traces ĥ (B, M, H), zero at the start.
    The three dense layers lie in `weight_ih` (2 H M + H, F: r, s, q), `weight_hh` (2 H M, H: r, s), `weight_qh`
    (H, H) and `bias` (2 H M + H), so that all input halves are one product over all steps. Start values: Glorot for
    each dense layer, whose inputs are x and h together; zero bias.

    Reference: Mozer, Kazakov and Lindsey 2017, Discrete event, continuous time RNNs, arXiv 1710.04110.
    """

    continuous = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        scales: int = 8,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        if scales < 1:
            raise ValueError(f"scales must be at least 1, not {scales}.")
        self.scales = scales
        gates, outputs = 2 * hidden_size * scales, 2 * hidden_size * scales + hidden_size
        self.weight_ih = nn.Parameter(torch.empty(outputs, input_size, device=device, dtype=dtype))
        self.weight_hh = nn.Parameter(torch.empty(gates, hidden_size, device=device, dtype=dtype))
        self.weight_qh = nn.Parameter(torch.empty(hidden_size, hidden_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outputs, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        traces = self.hidden_size * self.scales
        blocks = self.weight_ih.split([traces, traces, self.hidden_size])
        recurrent = (*self.weight_hh.split(traces), self.weight_qh)
        for W, U in zip(blocks, recurrent, strict=True):
            whole = glorot_(W.new_empty(len(W), self.input_size + self.hidden_size))
            W.copy_(whole[:, : self.input_size])
            U.copy_(whole[:, self.input_size :])
        self.bias.zero_()

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.scales, self.hidden_size)

    def constants(self) -> Constants:
        log_tau = torch.arange(self.scales, device=self.bias.device, dtype=self.bias.dtype) * (0.5 * math.log(10))
        U = self._scales_first(self.weight_hh).flatten(0, 2)
        log_tau = log_tau.unsqueeze(-1)
        return self.weight_ih, U.t(), self.weight_qh.t(), self.bias, log_tau, (-1 / log_tau.exp()).exp()

    def _scales_first(self, gates: Tensor) -> Tensor:
        """(2 H M, …) → (2, M, H, …): a CPU sums over scales fastest where units are neighbours."""
        return gates.unflatten(0, (2, self.hidden_size, self.scales)).transpose(1, 2)

    def project(
        self, constants: Constants, x: Tensor, timespans: Tensor | None
    ) -> Projection | tuple[Projection, Tensor]:
        """What the input says of the two scales, less ln τ_i, and of q, (B, T, 2 M H + H); and the decay, (B, T, M, 1),
        if it is not always the same. As one product: its gradient is read once.
        """
        W, _, _, bias, log_tau, _ = constants
        sizes = [len(W) - self.hidden_size, self.hidden_size]
        (W_g, W_q), (b_g, b_q) = W.split(sizes), bias.split(sizes)
        weight = torch.cat([self._scales_first(W_g).flatten(0, 2), W_q])
        offset = torch.cat([(self._scales_first(b_g) - log_tau).flatten(), b_q])
        read = Projection(x, weight, offset)
        return read if timespans is None else (read, (-spans(x, timespans).unsqueeze(-1) / log_tau.exp()).exp())

    @staticmethod
    def step(constants: Constants, u: Tensor | tuple[Tensor, Tensor], traces: Tensor) -> tuple[Tensor, Tensor]:
        _, U, U_q, _, _, always = constants
        read, decay = u if isinstance(u, tuple) else (u, always)
        gates, q = read.split([U.shape[1], U_q.shape[1]], -1)
        distance = (gates + traces.sum(-2) @ U).unflatten(-1, (2, *traces.shape[-2:]))
        read, store = (-distance.square()).softmax(-2).unbind(1)
        q = (q + (read * traces).sum(-2) @ U_q).tanh()
        traces = (traces + store * (q.unsqueeze(-2) - traces)) * decay
        return traces, traces.sum(-2)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scales={self.scales}"


@model(
    "ct_gru",
    reference="Mozer, Kazakov and Lindsey 2017, Discrete event, continuous time RNNs, arXiv 1710.04110",
)
def ct_gru(spec: TaskSpec, *, hidden_size: int = 32, scales: int = 8) -> nn.Module:
    """Continuous-time GRU: every unit remembers at several time scales, and gates choose among them.

        τ_i = 10^(i/2),  h = Σ_i ĥ_i
        r_i = softmax_i(−(W_r [x_t, h] − ln τ_i)²),   q = tanh(W_q [x_t, Σ_i r_i ĥ_i])
        s_i = softmax_i(−(W_s [x_t, h] − ln τ_i)²),   ĥ_i ← ((1 − s_i) ĥ_i + s_i q) · exp(−Δt / τ_i)

    The last h passes a dense layer. Elapsed time, where a task gives it, is Δt; elsewhere Δt is 1.

    Options:
        hidden_size: units; the published arena has 32
        scales: time scales, each √10 times the one before, from 1; the published arena has 8
    """
    return SequenceModel(CTGRU(spec.input_size, hidden_size, scales=scales), spec)
