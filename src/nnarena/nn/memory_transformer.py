"""A recurrent cell that is a small transformer: its memory is a row of tokens.

B batch, T time, F input features, N memory rows, C memory columns, D model width, h heads, O outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import dense
from nnarena.nn.linear import linear
from nnarena.nn.norm import layer_norm
from nnarena.nn.recurrent import Recurrent
from nnarena.nn.transformer import WideAttention, sinusoids

START = 1e-6  # every number of the memory before the first step
EPSILON = 1e-6  # of the norm

Dense = tuple[Tensor, Tensor]  # weight and bias


class Constants(NamedTuple):
    embed: Dense  # bias and place of token 0 in one
    memory_weight: Tensor  # (D, C)
    memory_places: Tensor  # (N, D) bias and places of the tokens 1 … N in one
    attention_in: Dense  # query / √D, key and value of one head after the other, (3hD, D)
    memory_in: Dense  # the same of the rows of the memory at once: (3hD, C), and (N, 3hD) with bias and places
    attention_out: Dense
    norm: Dense
    widen: Dense
    narrow: Dense
    head: Dense
    write: Dense


class MemoryAugmentedTransformer(Recurrent):
    """One transformer block over the input and the rows of a memory, at every step.

        z = [E x_t, E_M M₁, …, E_M M_N] + places(0 … N)
        z ← norm(z + attention(z, z, z));  z ← norm(z + W₂ relu(W₁ z))       the same norm twice
        y_t = W_y z₀ + b_y
        g_i, d_i = split(W_M z_i + b_M),   M_i ← σ(−g_i) M_i + σ(g_i) d_i

    with attention(Q, K, V) = softmax(Q Kᵀ / √D) V, every head D wide, and sinusoidal places. Output (B, T, O): the
    answer itself. The state is the memory (B, N, C), which starts at 1e-6.

    Reference: the published arena (2021), which is where it comes from.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        rows: int = 16,
        columns: int = 16,
        d_model: int = 32,
        nhead: int = 2,
        dim_feedforward: int = 128,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"output_size": output_size, "rows": rows, "columns": columns, "d_model": d_model}
        for name, size in (sizes | {"nhead": nhead, "dim_feedforward": dim_feedforward}).items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        if d_model % 2:
            raise ValueError(f"d_model must be even (sine and cosine take turns), not {d_model}.")
        super().__init__(input_size, output_size, batch_first=batch_first, backend=backend)
        self.rows, self.columns, self.d_model = rows, columns, d_model
        self.embed = dense(input_size, d_model)
        self.embed_memory = dense(columns, d_model)
        self.attention = WideAttention(d_model, nhead)
        self.norm = nn.LayerNorm(d_model, eps=EPSILON)
        self.feedforward = nn.Sequential(dense(d_model, dim_feedforward), nn.ReLU(), dense(dim_feedforward, d_model))
        self.head = dense(d_model, output_size)
        self.write = dense(d_model, 1 + columns)
        self.to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_full((batch, self.rows, self.columns), START)

    def constants(self) -> Constants:
        weight, bias = self.embed.weight, self.embed.bias
        places = sinusoids(torch.arange(1 + self.rows, device=bias.device, dtype=bias.dtype), self.d_model)
        three = (self.attention.query, self.attention.key, self.attention.value)
        scales = (self.d_model**-0.5, 1.0, 1.0)
        memory_weight, memory_places = self.embed_memory.weight, self.embed_memory.bias + places[1:]
        attention_in = (
            self._by_head([scale * part.weight for scale, part in zip(scales, three, strict=True)]),
            self._by_head([scale * part.bias for scale, part in zip(scales, three, strict=True)]),
        )
        return Constants(
            embed=(weight, bias + places[0]),
            memory_weight=memory_weight,
            memory_places=memory_places,
            attention_in=attention_in,
            memory_in=(attention_in[0] @ memory_weight, F.linear(memory_places, *attention_in)),
            attention_out=_pair(self.attention.output),
            norm=_pair(self.norm),
            widen=_pair(self.feedforward[0]),
            narrow=_pair(self.feedforward[2]),
            head=_pair(self.head),
            write=_pair(self.write),
        )

    def _by_head(self, three: list[Tensor]) -> Tensor:
        """(hD, …) of queries, keys and values → (h3D, …): what a head needs lies together, and is done with it."""
        return torch.stack([part.unflatten(0, (-1, self.d_model)) for part in three], 1).flatten(0, 2)

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> tuple[Tensor, Tensor]:
        """Token 0, and its queries, keys and values."""
        first = linear(x, *constants.embed)
        return first, linear(first, *constants.attention_in)

    @staticmethod
    def step(constants: Constants, u: tuple[Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """The block for the rows of the memory, which recur. Of token 0, only what it sees of them."""
        first, asked = u
        rows = F.linear(state, constants.memory_weight) + constants.memory_places
        weight, bias = constants.memory_in
        asked = torch.cat([asked.unsqueeze(1), F.linear(state, weight) + bias], 1)
        parts = asked.split(rows.shape[-1], -1)
        seen = torch.cat([_attention(*parts[head : head + 3]) for head in range(0, len(parts), 3)], -1)
        z = _block(constants, rows, seen[:, 1:])
        gate, data = F.linear(z, *constants.write).tensor_split([1], -1)
        return (-gate).sigmoid() * state + gate.sigmoid() * data, torch.cat([first, seen[:, 0]], 1)

    def finish(self, constants: Constants, outputs: Tensor) -> Tensor:
        first, seen = outputs.tensor_split([self.d_model], -1)
        return linear(_block(constants, first, seen), *constants.head)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, rows={self.rows}, columns={self.columns}"


def _pair(layer: nn.Module) -> Dense:
    return layer.weight, layer.bias  # type: ignore[return-value]


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)


def _block(constants: Constants, z: Tensor, seen: Tensor) -> Tensor:
    """What follows attention in the block: tokens (…, D), and what their heads saw (…, hD)."""
    z = layer_norm(z + linear(seen, *constants.attention_out), *constants.norm, EPSILON)
    return layer_norm(z + linear(linear(z, *constants.widen).relu(), *constants.narrow), *constants.norm, EPSILON)


@model(
    "memory_augmented_transformer", reference="Neural Network Arena 2021, github.com/Oidlichtnwoada/NeuralNetworkArena"
)
def memory_augmented_transformer(
    spec: TaskSpec,
    *,
    rows: int = 16,
    columns: int = 16,
    d_model: int = 32,
    nhead: int = 2,
    dim_feedforward: int = 128,
) -> nn.Module:
    """A transformer block as a recurrent cell: the input and the rows of a memory attend to each other.

        z = [E x_t, E_M M₁, …, E_M M_N] + places(0 … N)
        z ← norm(z + attention(z, z, z));  z ← norm(z + W₂ relu(W₁ z))
        g_i, d_i = split(W_M z_i + b_M),   M_i ← σ(−g_i) M_i + σ(g_i) d_i
        y_t = W_y z₀ + b_y

    The last y is the answer. Elapsed time, where a task gives it, is one more input.

    Options:
        rows: rows of the memory; each is a token
        columns: numbers in each row
        d_model: width of the block and of every head; even
        nhead: attention heads
        dim_feedforward: units of the feed-forward net
    """
    layer = MemoryAugmentedTransformer(
        spec.input_size + spec.timespans,
        spec.output_size,
        rows=rows,
        columns=columns,
        d_model=d_model,
        nhead=nhead,
        dim_feedforward=dim_feedforward,
    )
    return SequenceModel(layer, spec, features=0)
