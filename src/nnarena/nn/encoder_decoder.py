"""Encoder and decoder: two recurrent layers, with attention between them or without.

B batch, T steps of the source, L steps of the target, E width of an embedding, H units, V tokens.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import PADDING, TaskSpec
from nnarena.core.tokens import shifted
from nnarena.nn.budget import width_or_widest
from nnarena.nn.cells import CELLS, cell_parameters
from nnarena.nn.init import dense
from nnarena.nn.seq2seq import Seq2Seq

Memory = tuple[Any, Tensor, Tensor]  # the reader's last state, its outputs (B, T, H), what is padding (B, T)


class Attention(nn.Module):
    """Which steps of a memory matter to a query, and their mean.

        α_t = softmax_t(score(q, k_t)),   c = Σ_t α_t k_t

        dot_product          score = qᵀ k
        scaled_dot_product   score = qᵀ k / √H
        additive             score = vᵀ tanh(W q + U k)

    (B, L, H), (B, T, H) and what is padding, (B, T) → c (B, L, H) and α (B, L, T). Padding has no weight.

    Reference: additive, Bahdanau et al. 2015; dot product, Luong et al. 2015; scaled, Vaswani et al. 2017.
    """

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        if kind not in ("dot_product", "scaled_dot_product", "additive"):
            raise ValueError(f"attention is dot_product, scaled_dot_product or additive, not {kind!r}.")
        self.kind = kind
        if kind == "additive":
            self.query, self.key = dense(size, size), nn.Linear(size, size, bias=False)
            self.mix = nn.Linear(size, 1, bias=False)

    def forward(self, query: Tensor, memory: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(query, memory).masked_fill(padding.unsqueeze(1), -torch.inf)
        weights = scores.softmax(-1)
        return weights @ memory, weights

    def scores(self, query: Tensor, memory: Tensor) -> Tensor:
        if self.kind == "additive":
            return self.mix(torch.tanh(self.query(query).unsqueeze(2) + self.key(memory).unsqueeze(1))).squeeze(-1)
        scale = math.sqrt(query.shape[-1]) if self.kind == "scaled_dot_product" else 1.0
        return query @ memory.transpose(1, 2) / scale


class EncoderDecoder(Seq2Seq):
    """A recurrent reader whose last state a recurrent writer starts from.

        m_t, s   = cell(E x_t, …)                       the source, and the state after it
        h_l      = cell'(E' y_(l−1), h_(l−1)),  h_0 = s
        c_l      = Σ_t α_lt m_t,  α by `Attention` of h_l over m; only with attention
        logits_l = V tanh(W (c_l, h_l) + b) + d;  without attention V h_l + d

    The context c joins after the recurrence, as Luong et al. have it (without feeding it back), for every kind of
    score: all steps of a target are then one call of the writer's layer. Bahdanau et al. have it before.

    Reference: Cho et al. 2014; Sutskever et al. 2014; Luong et al. 2015.
    """

    def __init__(
        self,
        spec: TaskSpec,
        *,
        cell: str = "gru",
        attention: str | None = "scaled_dot_product",
        hidden_size: int,
        embedding_size: int,
        **teaching: Any,
    ) -> None:
        super().__init__(spec, hidden_size, **teaching)
        self.source = embedding(spec.vocabulary, embedding_size)
        self.target = embedding(spec.output_size, embedding_size)
        self.encoder, self.decoder = (CELLS[cell](embedding_size, hidden_size) for _ in range(2))
        self.attention = None if attention is None else Attention(hidden_size, attention)
        self.combine = None if attention is None else dense(2 * hidden_size, hidden_size)
        self.head = dense(hidden_size, spec.output_size)

    def read(self, source: Tensor) -> Memory:
        outputs, state = self.encoder(self.source(source))
        return state, outputs, source == PADDING

    def think(self, memory: Memory, before: Tensor) -> Tensor:
        return self.decoder(self.target(before), memory[0])[0]

    def begin(self, memory: Memory) -> Any:
        return memory[0]

    def step(self, memory: Memory, state: Any, token: Tensor, place: int) -> tuple[Tensor, Any]:
        output, state = self.decoder(self.target(token.unsqueeze(1)), state)
        return output[:, 0], state

    def say(self, memory: Memory, output: Tensor) -> Tensor:
        if self.attention is not None and self.combine is not None:
            context, _ = self.attention(output, *memory[1:])
            output = torch.tanh(self.combine(torch.cat([context, output], -1)))
        return self.head(output)

    def attention_map(self, source: Tensor) -> tuple[Tensor, Tensor] | None:
        """What it writes by itself, tokens (B, L), and what it looked at, α (B, L, T); None without attention."""
        if self.attention is None:
            return None
        memory = self.read(source)
        tokens = self.write(memory, len(source)).argmax(-1)
        return tokens, self.attention(self.think(memory, shifted(tokens)), *memory[1:])[1]


def embedding(tokens: int, size: int) -> nn.Embedding:
    """A vector for each token, of length about 1."""
    layer = nn.Embedding(tokens, size)
    nn.init.normal_(layer.weight, std=size**-0.5)
    return layer


@model(
    "encoder_decoder",
    reference="Cho et al. 2014; Sutskever et al. 2014; attention: Bahdanau et al. 2015, Luong et al. 2015",
    reads="tokens",
)
def encoder_decoder(
    spec: TaskSpec,
    *,
    cell: Literal["gru", "lstm", "elman"] = "gru",
    attention: Literal["additive", "dot_product", "scaled_dot_product"] | None = "scaled_dot_product",
    hidden_size: int | None = None,
    embedding_size: int = 16,
    forcing: Literal["teacher", "scheduled", "free", "professor"] = "teacher",
    anneal: Literal["linear", "exponential", "inverse_sigmoid"] | None = None,
    anneal_steps: int | None = None,
    beam: int = 1,
) -> nn.Module:
    """One recurrent layer reads, another one writes, and attention looks back at what was read.

        h_l = cell(E y_(l−1), h_(l−1)),  h_0 the state after the source
        c_l = Σ_t α_lt m_t,  α_l = softmax(score(h_l, m)) over the outputs m of the reader
        logits_l = V tanh(W (c_l, h_l) + b) + d

    Options:
        cell: what recurs, in the reader and in the writer
        attention: how h and m are compared; none writes from the last state alone
        hidden_size: units of each layer; none has as many as 20,000 parameters allow
        embedding_size: numbers a token becomes
        forcing: what it is told of the target in training: teacher all, scheduled ever less, free nothing; professor
            all, and a discriminator (whose parameters count) compares how it then behaves with how it behaves alone
        anneal: with forcing=scheduled how the share of what is told falls; none is inverse_sigmoid
        anneal_steps: with forcing=scheduled over how many steps of training; none is 1000
        beam: beginnings that are kept when it writes by itself; 1 is greedy
    """

    if embedding_size < 1:
        raise Unfit(f"it takes embedding_size of at least 1, not {embedding_size}.")

    def parameters(units: int) -> int:
        looks = 2 * units * (units + 1) if attention == "additive" else 0
        context = 0 if attention is None else looks + (2 * units + 1) * units
        tokens = (spec.vocabulary + spec.output_size) * embedding_size + (units + 1) * spec.output_size
        return tokens + context + 2 * cell_parameters(cell, embedding_size, units)

    units = width_or_widest("hidden_size", hidden_size, parameters)
    sizes = {"hidden_size": units, "embedding_size": embedding_size}
    teaching = {"forcing": forcing, "anneal": anneal, "anneal_steps": anneal_steps, "beam": beam}
    return EncoderDecoder(spec, cell=cell, attention=attention, **sizes, **teaching)
