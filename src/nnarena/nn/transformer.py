"""Transformer: the encoder-decoder of the published arena.

B batch, T time, D model width, h heads.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.kernels import recurrence
from nnarena.nn.init import dense
from nnarena.nn.norm import LayerNorm

SHORT = 128  # places, up to which plain products are faster on a CPU
Attention = Callable[[int, int], nn.Module]


class Transformer(nn.Module):
    """Encoder-decoder that reads a sequence and writes one token.

        attention(Q, K, V) = softmax(Q Kᵀ / √D) V,   every head D wide
        encoder layer:   x ← norm(x + attention(x, x, x));  x ← norm(x + W₂ relu(W₁ x))
        decoder layer:   the same with attention(y, x, x) in between

    The input is embedded, multiplied by √D and given sinusoidal positions: the number of the step, or the cumulated
    time where `timespans` come along. The decoder starts from a token of ones, so its self-attention sees one place
    only; its output passes a dense layer.

    Differs from Vaswani et al. 2017 as the published arena does: heads have the full width D instead of D / h, there
    is no dropout, and the start token is embedded like a value.

    `attention(d_model, nhead)` makes what stands in for the attention: a module that is called with queries and memory,
    (B, T, D) and (B, T', D), and answers (B, T, D).
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        d_model: int = 16,
        nhead: int = 2,
        dim_feedforward: int = 64,
        num_layers: int = 2,
        attention: Attention | None = None,
    ) -> None:
        super().__init__()
        sizes = {"d_model": d_model, "nhead": nhead, "dim_feedforward": dim_feedforward, "num_layers": num_layers}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        if d_model % 2:
            raise ValueError(f"d_model must be even (sine and cosine take turns), not {d_model}.")
        self.d_model, self.input_size, self.output_size = d_model, input_size, output_size
        self.embed = dense(input_size, d_model)
        self.embed_token = dense(output_size, d_model)
        block = functools.partial(Block, d_model, nhead, dim_feedforward, attention=attention)
        self.encoder = nn.ModuleList(block() for _ in range(num_layers))
        self.decoder = nn.ModuleList(block(memory=True) for _ in range(num_layers))
        self.head = dense(d_model, output_size)

    def forward(self, x: Tensor, timespans: Tensor | None = None) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            raise ValueError(f"{type(self).__name__} reads (batch, time, {self.input_size}), not {tuple(x.shape)}.")
        steps = torch.arange(x.shape[1], device=x.device, dtype=x.dtype).unsqueeze(0)
        memory = self._place(self.embed(x), steps if timespans is None else timespans.cumsum(1))
        for block in self.encoder:
            memory = block(memory)
        token = self._place(self.embed_token(x.new_ones(len(x), 1, self.output_size)), steps[:, :1])
        for block in self.decoder:
            token = block(token, memory)
        return self.head(token[:, 0])

    def _place(self, embedded: Tensor, positions: Tensor) -> Tensor:
        return embedded * math.sqrt(self.d_model) + sinusoids(positions, self.d_model)


class Block(nn.Module):
    """Self-attention, attention over `memory` if there is one, and a feed-forward net; norm after each sum."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        *,
        memory: bool = False,
        attention: Attention | None = None,
    ) -> None:
        super().__init__()
        attention = attention or WideAttention
        self.attention = attention(d_model, nhead)
        self.norm = LayerNorm(d_model, eps=1e-6)
        self.memory_attention = attention(d_model, nhead) if memory else None
        self.memory_norm = LayerNorm(d_model, eps=1e-6) if memory else None
        self.feedforward = nn.Sequential(dense(d_model, dim_feedforward), nn.ReLU(), dense(dim_feedforward, d_model))
        self.feedforward_norm = LayerNorm(d_model, eps=1e-6)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.norm(x + self.attention(x, x))
        if self.memory_attention is not None and self.memory_norm is not None and memory is not None:
            x = self.memory_norm(x + self.memory_attention(x, memory))
        return self.feedforward_norm(x + self.feedforward(x))


class WideAttention(nn.Module):
    """Multi-head scaled dot-product attention whose heads are each as wide as the model."""

    def __init__(self, d_model: int, nhead: int) -> None:
        super().__init__()
        self.nhead = nhead
        self.query = dense(d_model, nhead * d_model)
        self.key = dense(d_model, nhead * d_model)
        self.value = dense(d_model, nhead * d_model)
        self.output = dense(nhead * d_model, d_model)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (self._heads(part) for part in (self.query(x), self.key(memory), self.value(memory)))
        return self.output(attend(q, k, v).transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, h·D) → (B, h, T, D)."""
        return x.unflatten(-1, (self.nhead, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention, with dropout of the shares if asked for.

    Plain products where a GPU's fast kernels cannot be mapped over a population, or would draw their own numbers; and
    on a CPU while all shares of a sample fit into its cache.
    """
    if dropout or (not q.is_cuda and 1 < q.shape[-2] <= SHORT and k.shape[-2] <= SHORT):
        shares = (q / q.shape[-1] ** 0.5 @ k.mT).softmax(-1)
        return F.dropout(shares, dropout) @ v
    with sdpa_kernel(SDPBackend.MATH) if q.is_cuda and recurrence.is_mapped() else contextlib.nullcontext():
        return F.scaled_dot_product_attention(q, k, v)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """(B, T) → (B, T, width): sine in even places, cosine in odd ones, wave lengths 2π … 10000 · 2π."""
    rates = 10_000 ** (-torch.arange(0, width, 2, device=positions.device, dtype=positions.dtype) / width)
    angles = positions.unsqueeze(-1) * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


@model("transformer", reference="Vaswani et al. 2017, Attention is all you need, NeurIPS")
def transformer(
    spec: TaskSpec, *, d_model: int = 16, nhead: int = 2, dim_feedforward: int = 64, num_layers: int = 2
) -> nn.Module:
    """Encoder-decoder Transformer: every step attends to every other, one token comes out.

        attention(Q, K, V) = softmax(Q Kᵀ / √d_model) V
        encoder layer:   x ← norm(x + attention(x, x, x));  x ← norm(x + W₂ relu(W₁ x))
        decoder layer:   the same with attention over the encoder's output in between

    Sinusoidal positions, of the cumulated time where a task gives it. Every head has the full width d_model.

    Options:
        d_model: width of the model and of every head; even
        nhead: attention heads
        dim_feedforward: units of the feed-forward nets
        num_layers: encoder layers, and as many decoder layers
    """
    if spec.per_step:
        raise Unfit("it decodes one token, and the task wants an output at every step.")
    return Transformer(
        spec.input_size,
        spec.output_size,
        d_model=d_model,
        nhead=nhead,
        dim_feedforward=dim_feedforward,
        num_layers=num_layers,
    )
