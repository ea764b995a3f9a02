"""A Transformer that turns tokens into tokens, made of torch's own layers.

B batch, T steps of the source, L steps of the target, D width, V tokens.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import PADDING, TaskSpec
from nnarena.core.tokens import shifted
from nnarena.kernels import recurrence
from nnarena.nn.budget import widest
from nnarena.nn.encoder_decoder import embedding
from nnarena.nn.init import dense
from nnarena.nn.seq2seq import Seq2Seq
from nnarena.nn.transformer import sinusoids

Memory = tuple[Tensor, Tensor]  # the source, read (B, T, D), and what is padding (B, T)


class Seq2SeqTransformer(Seq2Seq):
    """`torch.nn.TransformerEncoderLayer` reads, `torch.nn.TransformerDecoderLayer` writes.

        encoder layer:   x ← norm(x + attention(x, x));  x ← norm(x + W₂ relu(W₁ x))
        decoder layer:   the same with attention over the encoder's output in between, and its own attention reaches
                         back only

    Sinusoidal positions; those of the source count from its first token, not from the padding in front. Padding is
    attended to by nobody. Without dropout. A `step` reads all that was written before anew, so writing
    takes L calls of the decoder.

    Reference: Vaswani et al. 2017.
    """

    attention_of = "the last decoder layer's attention over the source, the mean over its heads"

    def __init__(
        self, spec: TaskSpec, *, d_model: int, nhead: int, dim_feedforward: int, num_layers: int, **teaching: Any
    ) -> None:
        super().__init__(spec, d_model, **teaching)
        if d_model < 1 or d_model % 2 or d_model % nhead:
            raise Unfit(f"it needs a d_model that is even and a multiple of nhead={nhead}, not {d_model}.")
        sizes = {"dropout": 0.0, "batch_first": True}
        self.d_model = d_model
        self.source = embedding(spec.vocabulary, d_model)
        self.target = embedding(spec.output_size, d_model)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, **sizes) for _ in range(num_layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(d_model, nhead, dim_feedforward, **sizes) for _ in range(num_layers)
        )
        self.head = dense(d_model, spec.output_size)

    def read(self, source: Tensor) -> Memory:
        padding = source == PADDING
        x = self._place(self.source, source, (~padding).cumsum(1) - 1)
        with _plain(x):
            for layer in self.encoder:
                x = layer(x, src_key_padding_mask=padding)
        return x, padding

    def think(self, memory: Memory, before: Tensor) -> Tensor:
        x, ahead = self._written(before)
        return self._decode(self.decoder, memory, x, ahead)

    def begin(self, memory: Memory) -> Tensor:
        return memory[1].new_zeros(len(memory[1]), self.target_length, dtype=torch.int64)

    def step(self, memory: Memory, state: Tensor, token: Tensor, place: int) -> tuple[Tensor, Tensor]:
        here = torch.arange(self.target_length, device=token.device) == place
        state = torch.where(here, token.unsqueeze(1), state)
        return self.think(memory, state[:, : place + 1])[:, -1], state

    def say(self, memory: Memory, output: Tensor) -> Tensor:
        return self.head(output)

    def attention_map(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """What it writes by itself, tokens (B, L), and what its last decoder layer then looks at, (B, L, T).

        x ← norm(x + attention(x, x));   α = mean over heads of softmax(Q Kᵀ / √(D / heads)),  Q of x, K of the source
        """
        memory = self.read(source)
        tokens = self.write(memory, len(source)).argmax(-1)
        x, ahead = self._written(shifted(tokens))
        x = self._decode(self.decoder[:-1], memory, x, ahead)
        last = cast(nn.TransformerDecoderLayer, self.decoder[-1])
        x = last.norm1(x + last.self_attn(x, x, x, attn_mask=ahead, need_weights=False)[0])
        read, padding = memory
        return tokens, last.multihead_attn(x, read, read, key_padding_mask=padding, average_attn_weights=True)[1]

    def _written(self, before: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens with their places (B, L, D), and which of them lie ahead of each (L, L)."""
        steps = torch.arange(before.shape[1], device=before.device)
        return self._place(self.target, before, steps.unsqueeze(0)), steps[:, None] < steps

    def _decode(self, layers: Iterable[nn.Module], memory: Memory, x: Tensor, ahead: Tensor) -> Tensor:
        with _plain(x):
            for layer in layers:
                x = layer(x, memory[0], tgt_mask=ahead, memory_key_padding_mask=memory[1])
        return x

    def _place(self, layer: nn.Embedding, tokens: Tensor, positions: Tensor) -> Tensor:
        embedded = layer(tokens)
        return embedded * math.sqrt(self.d_model) + sinusoids(positions.to(embedded.dtype), self.d_model)


def _plain(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """A GPU's fast kernels of attention cannot be mapped over a population, plain products can."""
    return sdpa_kernel(SDPBackend.MATH) if x.is_cuda and recurrence.is_mapped() else contextlib.nullcontext()


@model("seq2seq_transformer", reference="Vaswani et al. 2017, Attention is all you need, NeurIPS", reads="tokens")
def seq2seq_transformer(
    spec: TaskSpec,
    *,
    d_model: int | None = None,
    nhead: int = 2,
    dim_feedforward: int = 64,
    num_layers: int = 2,
    forcing: Literal["teacher", "scheduled", "free", "professor"] = "teacher",
    anneal: Literal["linear", "exponential", "inverse_sigmoid"] | None = None,
    anneal_steps: int | None = None,
    beam: int = 1,
) -> nn.Module:
    """Transformer of torch's own layers: the encoder reads all tokens at once, the decoder writes one after another.

        attention(Q, K, V) = softmax(Q Kᵀ / √(d_model / nhead)) V
        encoder layer:   x ← norm(x + attention(x, x, x));  x ← norm(x + W₂ relu(W₁ x))
        decoder layer:   the same with attention over the encoder's output in between

    Options:
        d_model: width; none is as wide as 20,000 parameters allow
        nhead: attention heads
        dim_feedforward: units of the feed-forward nets
        num_layers: encoder layers, and as many decoder layers
        forcing: what it is told of the target in training: teacher all, scheduled ever less, free nothing; professor
            all, and a discriminator (whose parameters count) compares how it then behaves with how it behaves alone
        anneal: with forcing=scheduled how the share of what is told falls; none is inverse_sigmoid
        anneal_steps: with forcing=scheduled over how many steps of training; none is 1000
        beam: beginnings that are kept when it writes by itself; 1 is greedy
    """
    if min(nhead, dim_feedforward, num_layers) < 1:
        raise Unfit("it has at least 1 head, 1 unit and 1 layer.")
    each = math.lcm(2, nhead)

    def parameters(times: int) -> int:
        D, V = times * each, spec.output_size
        feedforward = 2 * D * dim_feedforward + dim_feedforward + D
        layers = 3 * (4 * D * D + 4 * D) + 5 * 2 * D + 2 * feedforward
        return (spec.vocabulary + V) * D + num_layers * layers + (D + 1) * V

    width = each * widest(parameters) if d_model is None else d_model
    sizes = {"nhead": nhead, "dim_feedforward": dim_feedforward, "num_layers": num_layers}
    teaching = {"forcing": forcing, "anneal": anneal, "anneal_steps": anneal_steps, "beam": beam}
    return Seq2SeqTransformer(spec, d_model=width, **sizes, **teaching)
