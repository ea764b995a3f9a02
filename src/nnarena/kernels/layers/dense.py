"""A dense layer over very many rows, of many seeds at once: little memory is moved, and no part of a GPU is idle.

    u = x Wᵀ + b,   dW = Σ over rows of duᵀ x,   db = Σ over rows of du

The gradients are a product whose result is small and whose sum is long, and sums of what it reads. The libraries cut
the sum into parts for one model, on units that are slow at it, and not at all for a population; so they are taken by
`product_and_sum_over_steps`. Where u is much wider than x, the time goes into moving it: b is one more column of W,
which meets a column of ones in x, and is added on the way. Where x has a few features only, such as those of a time
series, u takes no matrix units but one pass that writes it.

S seeds, R rows, F features, N outputs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.compiler.tiles import power_of_two
from nnarena.kernels.gpu.gemm import product_and_sum_over_steps, product_over_steps
from nnarena.kernels.gpu.runtime import precision_on
from nnarena.kernels.launch import launch
from nnarena.kernels.seeds import folded, unfolded

ALIGNED = 4  # columns: 16 bytes, which memory is read by
NARROW = 8  # features, up to which x is narrow
SMALL = 65_536  # weights of one model; the libraries are good at gradients of more
NUMBERS = 4_096  # of u that a program writes


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (…, F), weight (N, F), bias (N) → (…, N)."""
    rows = x.reshape(1, -1, x.shape[-1])
    return Product.apply(rows, weight[None], None if bias is None else bias[None]).view(*x.shape[:-1], -1)  # type: ignore[union-attr]


class Product(torch.autograd.Function):
    """(S, R, F), (S, N, F), (S, N) or None → (S, R, N)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        if x.shape[2] <= NARROW and weight.shape[1] >= x.shape[2]:
            return _widened(x, weight, bias)
        if bias is None:
            return x @ weight.mT
        if len(x) == 1:
            return torch.addmm(bias[0], x[0], weight[0].t())[None]
        if not _is_wide(weight):
            return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
        return (
            _with_ones(x)
            @ torch.nn.functional.pad(
                torch.cat([weight, bias.unsqueeze(2)], 2), (0, -(weight.shape[2] + 1) % ALIGNED)
            ).mT
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, pull: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        pulled = pull @ weight if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:]):
            return pulled, None, None
        return pulled, *Gradients.apply(x, pull, ctx.has_bias)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor | None) -> Any:  # type: ignore[override]
        parts = [
            None if tensor is None else folded(info.batch_size, dim, tensor)
            for dim, tensor in zip(in_dims, tensors, strict=True)
        ]
        return Product.apply(*parts).unflatten(0, (info.batch_size, -1)), 0  # type: ignore[union-attr]


class Gradients(torch.autograd.Function):
    """(S, R, F), (S, R, N) → dW (S, N, F), db (S, N) or None; a function of its own so that `torch.vmap` folds it."""

    @staticmethod
    def forward(x: Tensor, pull: Tensor, has_bias: bool) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        if len(x) == 1 and x.shape[2] * pull.shape[2] > SMALL:
            return pull.mT @ x, pull.sum(1) if has_bias else None
        left, right = (tensor[:, None, :, None] for tensor in (pull, x))  # as if of one sample
        precision = precision_on(x.device)
        if has_bias:
            return product_and_sum_over_steps(left, right, precision)
        return product_over_steps(left, right, precision), None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, pull_dw: Tensor, pull_db: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        x, pull = ctx.saved_tensors
        pulled = x @ pull_dw.mT
        return pull @ pull_dw, pulled if pull_db is None else pulled + pull_db.unsqueeze(1), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, pull: Tensor, has_bias: bool) -> Any:  # type: ignore[override]
        parts = (folded(info.batch_size, dim, tensor) for dim, tensor in zip(in_dims, (x, pull), strict=False))
        return unfolded(info.batch_size, Gradients.apply(*parts, has_bias))  # type: ignore[arg-type]


def _widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b of narrow rows."""
    (seeds, rows, features), outputs = x.shape, weight.shape[1]
    out = x.new_empty(seeds, rows, outputs)
    across = min(128, power_of_two(outputs))
    down = NUMBERS // across
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    grid, sizes = (-(-rows // down), -(-outputs // across), seeds), (outputs, features, bias is not None, down, across)
    launch(widen, grid, x, weight, bias, out, rows, *x.stride(), *sizes, like=x)
    return out


@triton.jit(do_not_specialize=["rows"])
def widen(
    x, weight, bias, out, rows, x_seed, x_row, x_feature,
    N: tl.constexpr, F: tl.constexpr, BIASED: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    seed = tl.program_id(2).to(tl.int64)
    row = (tl.program_id(0) * DOWN + tl.arange(0, DOWN)).to(tl.int64)
    column = tl.program_id(1) * ACROSS + tl.arange(0, ACROSS)
    total = tl.zeros((DOWN, ACROSS), tl.float32)
    if BIASED:
        total += tl.load(bias + seed * N + column, mask=column < N, other=0.0)[None, :]
    for k in tl.static_range(F):  # type: ignore[misc]
        feature = tl.load(x + seed * x_seed + row * x_row + k * x_feature, mask=row < rows, other=0.0)
        total += feature[:, None] * tl.load(weight + (seed * N + column) * F + k, mask=column < N, other=0.0)[None, :]
    there = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(out + (seed * rows + row)[:, None] * N + column[None, :], total, mask=there)


def _is_wide(weight: Tensor) -> bool:
    """Whether what comes out is so much wider than what comes in that copying the latter costs nothing."""
    return weight.shape[1] >= 2 * weight.shape[2]


def _with_ones(x: Tensor) -> Tensor:
    """x, a column of ones, and columns of zeros up to a width that memory is read by."""
    zeros = -(x.shape[2] + 1) % ALIGNED
    padding = torch.nn.functional.pad(x.new_ones(*x.shape[:2], 1), (0, zeros))
    return torch.cat([x, padding], 2)
