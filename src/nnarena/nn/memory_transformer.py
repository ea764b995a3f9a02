"""A recurrent cell that is a small transformer: its memory is a row of tokens.

A token is linear in what it is made of: that of row i in its numbers and its place, [M_i, 1_i], that of the input in
[x_t, 1]. So is all that attention makes of tokens but the softmax. What token i asks of token j is [M_i, 1_i] A
[M_j, 1_j]ᵀ with a matrix A for each head, and what it gets for its shares p is [p M, p] V. A and V are made of the
parameters, once for all steps, and the loop needs no queries, keys and values, which are wider than the memory. The
token of the input asks nothing there: nothing recurs on what it sees.

A norm begins by taking the mean away. What is added up before the first one has none to begin with.

B batch, T time, F input features, N memory rows, C memory columns, D model width, h heads, O outputs; R = C + N + F + 1
numbers and places that tokens are made of, in this order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.from_results import scaled, shares
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import dense
from nnarena.nn.linear import linear
from nnarena.nn.recurrent import Recurrent
from nnarena.nn.transformer import WideAttention, sinusoids

START = 1e-6  # every number of the memory before the first step
EPSILON = 1e-6  # of the norm

Dense = tuple[Tensor, Tensor]  # weight and bias


class Constants(NamedTuple):
    """Weights of the loop and of `finish`; those that read what is normed include the norm's scale and bias."""

    heads: int
    asks: Tensor  # (C, h (C + N) + D), of a row's numbers: what it asks of rows, head by head, and its token
    asks_there: Tensor  # (N, h (C + N) + D), the same of its place
    got: Tensor  # (h (C + N), D), of p M and p of every head: what a row gets of rows
    told: Dense  # of x: what rows ask of its token, h (C + N), and what they get of it, h D
    asking: Dense  # of x: what its token asks, h R, and the token
    got_of_all: Tensor  # (h R, D)
    where: Tensor
    widen: Dense
    narrow: Dense
    scale: Tensor
    write: Dense  # data, and the gate
    head: Dense


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

    places: Tensor  # (R, D)
    where: Tensor  # (N + 1, R): a one for the place of every token
    is_place: Tensor  # (R, 1): a one for every place
    centring: Tensor  # (D, D): what takes a mean away

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
        waves = sinusoids(torch.arange(1 + rows, dtype=torch.float64), d_model)
        none, size = waves.new_zeros, columns + rows + input_size + 1
        places = torch.cat([none(columns, d_model), waves[1:], none(input_size, d_model), waves[:1]])
        where = none(rows + 1, size)
        where[:rows, columns : columns + rows].fill_diagonal_(1)
        where[rows, -1] = 1
        centring = torch.eye(d_model, dtype=torch.float64) - 1 / d_model
        tables = {"places": places, "where": where, "is_place": where.sum(0).unsqueeze(1), "centring": centring}
        for name, table in tables.items():
            self.register_buffer(name, table.to(dtype or torch.get_default_dtype()), persistent=False)
        self.to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_full((batch, self.rows, self.columns), START)

    def constants(self) -> Constants:
        sizes, heads = [self.columns + self.rows, self.input_size + 1], self.attention.nhead  # of a row, of the input
        tokens, asked, got = self._attention()
        (rows, given), (by_rows, by_given) = tokens.split(sizes), asked.split(sizes, 1)
        of_rows, of_given = by_rows.split(sizes, 2)
        got_of_rows, got_of_given = got.unflatten(0, (heads, -1)).split(sizes, 1)
        asks = torch.cat([*of_rows, rows], 1).split([self.columns, self.rows])
        told = torch.cat([*of_given.mT, *got_of_given], 1).split([self.input_size, 1])
        asking = torch.cat([*by_given, given], 1).split([self.input_size, 1])
        widen, write, head = self._of_normed()
        narrow: Any = self.feedforward[2]
        return Constants(
            heads,
            *asks,
            got=torch.cat([*got_of_rows]),
            told=(told[0].mT, told[1].squeeze(0)),
            asking=(asking[0].mT, asking[1].squeeze(0)),
            got_of_all=got,
            where=self.where,
            widen=widen,
            narrow=(narrow.weight, narrow.bias + self.norm.bias),
            scale=self.norm.weight,
            write=write,
            head=head,
        )

    def _attention(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, (R, D), what one asks of another, (h, R, R), and what it gets of it, (h R, D).

        Of what a token is made of, each number and place has a row. The first and the last are without mean, and the
        bias of what is added to a token is a part of it.
        """
        memory, given, parts = self.embed_memory, self.embed, self.attention
        biases = memory.bias.expand(self.rows, -1), given.bias.unsqueeze(0)
        tokens = torch.cat([memory.weight.mT, biases[0], given.weight.mT, biases[1]]) + self.places
        three = parts.query, parts.key, parts.value
        weight, bias = torch.cat([part.weight for part in three]), torch.cat([part.bias for part in three])
        made = torch.addmm(self.is_place * bias, tokens, weight.mT).unflatten(1, (3, -1, self.d_model))
        query, key, value = made.permute(1, 2, 0, 3).unbind()  # (h, R, D) each
        asked = query @ key.mT / self.d_model**0.5
        got = (value @ parts.output.weight.mT.unflatten(0, (-1, self.d_model))).flatten(0, 1)
        added = torch.cat([torch.addcmul(tokens, self.is_place, parts.output.bias), got])
        tokens, got = (added @ self.centring).split([len(tokens), len(got)])
        return tokens, asked, got

    def _of_normed(self) -> list[Dense]:
        """What widens, writes and answers, as it reads what the norm has before it scales that; data come first."""
        widen: Any = self.feedforward[0]
        gate, data = self.write.weight.split([1, self.columns])
        gate_bias, data_bias = self.write.bias.split([1, self.columns])
        weight = torch.cat([widen.weight, data, gate, self.head.weight])
        bias = torch.cat([widen.bias, data_bias, gate_bias, self.head.bias])
        sizes = [len(widen.weight), len(self.write.weight), len(self.head.weight)]
        weight, bias = weight * self.norm.weight, F.linear(self.norm.bias, weight, bias)
        return list(zip(weight.split(sizes), bias.split(sizes), strict=True))

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, *constants.told)

    @staticmethod
    def step(constants: Constants, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The block for the rows of the memory, which recur; it puts out the memory that the input's token sees."""
        sizes = [state.shape[2], state.shape[1]] * constants.heads  # of numbers and places
        *asks, z = _split(state @ constants.asks + constants.asks_there, sizes)
        *keys, given = _split(u, sizes)
        seen = []
        for head, value in enumerate(given.chunk(constants.heads, -1)):
            (numbers, places), (key_numbers, key_places) = (parts[2 * head : 2 * head + 2] for parts in (asks, keys))
            first = (state * key_numbers.unsqueeze(1)).sum(-1) + key_places
            alone, among = shares(first.unsqueeze(-1), torch.bmm(numbers, state.mT) + places)
            seen += [torch.bmm(among, state), among]
            z = z + alone * value.unsqueeze(1)
        z = scaled(z + torch.cat(seen, -1) @ constants.got, EPSILON)
        z = scaled(_centred(_fed(constants, z)), EPSILON)
        data, gate = F.linear(z, *constants.write).tensor_split([-1], -1)
        return state + gate.sigmoid() * (data - state), state

    def finish(self, constants: Constants, x: Tensor, outputs: Tensor) -> Tensor:
        """The block for the token of the input, which asks the rows of the memory and itself."""
        asks, z = linear(x, *constants.asking).split([len(constants.got_of_all), self.d_model], -1)
        asks = asks.unflatten(-1, (constants.heads, -1))
        places, own = constants.where.expand(*x.shape[:2], -1, -1).split([self.rows, 1], 2)
        rows = torch.cat([outputs, places[..., self.columns :]], -1)
        own = torch.cat([own[..., : -1 - x.shape[-1]], x.unsqueeze(2), own[..., -1:]], -1)
        made = torch.cat([rows, own], 2)  # (B, T, N + 1, R), what all tokens are made of
        seen = (asks @ made.mT).softmax(-1) @ made
        z = z + linear(seen.flatten(2), constants.got_of_all.mT)
        z = F.layer_norm(z, z.shape[-1:], eps=EPSILON)
        return linear(F.layer_norm(_fed(constants, z), z.shape[-1:], eps=EPSILON), *constants.head)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, rows={self.rows}, columns={self.columns}"


def _split(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Parts of these sizes, and what is left."""
    return x.split([*sizes, x.shape[-1] - sum(sizes)], -1)


def _fed(constants: Constants, z: Tensor) -> Tensor:
    """A token and what the feed-forward net makes of it, from what the norm has scaled."""
    return constants.scale * z + linear(linear(z, *constants.widen).relu(), *constants.narrow)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


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
