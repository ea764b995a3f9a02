"""Gradients of weights: one product of matrices over all samples and steps, after the loop.

The result is small and what is summed is long, which leaves most of a GPU without work if every program computes a
part of the result. So each sums over a part of the samples and steps, and what they found is added up afterwards,
always in the same order. The matrix units multiply in bf16x6, which is as good as float32 and three times as fast.

S seeds, B batch, T steps.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.maths import thirds

PROGRAMS = 528  # four for each of the 132 processors of an H100: enough that none is idle for long
DEPTH = 32  # rows that a program reads at a time


def product_over_steps(left: Tensor, right: Tensor, precision: str) -> Tensor:
    """Σ over samples and steps of left rightᵀ, (S, K, N) from (S, B, T, rows, K) and (S, B, T, rows, N)."""
    if left.shape[-1] < right.shape[-1]:  # the matrix units want the larger side in front
        return product_over_steps(right, left, precision).mT
    left, right = _even(left), _even(right)
    seeds, batch, steps, rows, height = left.shape
    width, length = right.shape[-1], steps * rows
    down, across = (128 if height > 64 else 64), next(size for size in (16, 32, 64, 128) if size >= min(width, 128))
    tiles = -(-height // down) * -(-width // across)
    pieces = batch * -(-length // DEPTH)  # of so many rows of one sample
    parts = max(1, min(PROGRAMS // (tiles * seeds), pieces // 4))
    share = -(-pieces // parts)
    found = torch.empty(parts, seeds, height, width, device=left.device)
    with torch.cuda.device(left.device) if left.is_cuda else contextlib.nullcontext():
        kernel: Any = outer_products[parts, tiles, seeds]
        kernel(
            left, right, found, pieces, length, share, *_strides(left), *_strides(right), height, width,
            down, across, DEPTH, precision if left.is_cuda else "ieee",
            num_warps=8 if down * across == 128 * 128 else 4, num_stages=1,
        )  # fmt: skip
    return found.sum(0)


def _even(factor: Tensor) -> Tensor:
    """With rows of all steps of a sample at one distance from each other, and the numbers of a row side by side."""
    _, _, _, rows, _ = factor.shape
    even = factor.stride(4) == 1 and (rows == 1 or factor.stride(2) == rows * factor.stride(3))
    return factor if even else factor.contiguous()


def _strides(factor: Tensor) -> tuple[int, int, int]:
    """From a seed to the next, from a sample to the next, and from a row to the next."""
    return factor.stride(0), factor.stride(1), factor.stride(2) // factor.shape[3]


@triton.jit(do_not_specialize=["pieces", "length", "share"])
def outer_products(
    left, right, found, pieces, length, share,
    left_seed, left_sample, left_row, right_seed, right_sample, right_row,
    height: tl.constexpr, width: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, DEPTH: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    part, tile, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns: tl.constexpr = (width + ACROSS - 1) // ACROSS
    down = tile // columns * DOWN + tl.arange(0, DOWN)
    along = tile % columns * ACROSS + tl.arange(0, ACROSS)
    left += seed * left_seed + down[None, :]
    right += seed * right_seed + along[None, :]
    large = tl.zeros((DOWN, ACROSS), tl.float32)
    small = tl.zeros((DOWN, ACROSS), tl.float32)
    each = tl.cdiv(length, DEPTH)
    for piece in range(part * share, tl.minimum(pieces, (part + 1) * share)):
        sample = (piece // each).to(tl.int64)
        row = (piece % each * DEPTH + tl.arange(0, DEPTH))[:, None]
        there = row < length
        a = tl.load(left + sample * left_sample + row * left_row, mask=there & (down < height)[None, :], other=0.0)
        b = tl.load(right + sample * right_sample + row * right_row, mask=there & (along < width)[None, :], other=0.0)
        if precision == "bf16x6":
            a1, a2, a3 = thirds(a)
            b1, b2, b3 = thirds(b)
            small = tl.dot(tl.trans(a2), b2, small)
            small = tl.dot(tl.trans(a1), b3, small)
            small = tl.dot(tl.trans(a3), b1, small)
            small = tl.dot(tl.trans(a1), b2, small)
            small = tl.dot(tl.trans(a2), b1, small)
            large = tl.dot(tl.trans(a1), b1, large)
        else:
            large = tl.dot(tl.trans(a), b, large, input_precision=precision)
    found += (part.to(tl.int64) * tl.num_programs(2) + seed) * (height * width)
    inside = (down < height)[:, None] & (along < width)[None, :]
    tl.store(found + down[:, None] * width + along[None, :], large + small, mask=inside)
