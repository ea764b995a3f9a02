"""Gradients of weights: one product of matrices over all samples and steps, after the loop.

The result is small and what is summed is long, which leaves most of a GPU without work if every program computes a
part of the result. So each sums over a part of the samples and steps, and what they found is added up afterwards,
always in the same order. The matrix units multiply in bf16x6, three times as fast as float32.

The matrix units cut off what does not fit when they add, always towards zero, and over thousands of rows that would
be seen. So they add up a few rows only, from zero; the rest is added outside of them, to the nearest number. What comes
next is read while they work.

S seeds, B batch, T steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.launch import launch
from nnarena.kernels.maths import thirds
from nnarena.kernels.parts import added_up

PROCESSORS = 132  # of an H100


class Tiling(NamedTuple):
    """The part of the result that a program has, and how it is computed.

    down, across   its height and width
    depth          rows that are read at a time
    warps          of 32 threads
    together       so many programs share a processor, and wait for memory in turns; a thread may have `registers` then
    """

    down: int
    across: int
    depth: int
    warps: int
    together: int
    registers: int | None

    @property
    def sizes(self) -> dict[str, int]:
        return {"DOWN": self.down, "ACROSS": self.across, "DEPTH": self.depth}


def tiling(height: int, width: int) -> Tiling:
    """What was fastest of some thirty, for a result of this height and width, the larger of the two in front."""
    tall, wide = (-(-size // 64) % 2 == 0 for size in (height, width))  # whether 128 wastes no more than 64 does
    if tall and wide:
        return Tiling(128, 128, 64, warps=8, together=1, registers=None)
    across = next(size for size in (16, 32, 64) if size >= min(width, 64))
    if tall:
        return Tiling(128, across, 32, warps=8, together=2, registers=128)
    return Tiling(64, across, 32, warps=4, together=4, registers=128)


def product_over_steps(left: Tensor, right: Tensor, precision: str) -> Tensor:
    """Σ over samples and steps of left rightᵀ, (S, K, N) from (S, B, T, rows, K) and (S, B, T, rows, N)."""
    return _sums(left, right, precision, of_left=False)[0]


def product_and_sum_over_steps(left: Tensor, right: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The same, and Σ of left, (S, K), which is read anyway: the gradients of a weight and of its bias."""
    return _sums(left, right, precision, of_left=True)


def _sums(left: Tensor, right: Tensor, precision: str, of_left: bool) -> tuple[Tensor, Tensor]:
    """Σ of left rightᵀ, and of left if it is wanted; else nothing."""
    turned = left.shape[-1] < right.shape[-1]  # the matrix units want the larger side in front
    left, right = (_even(factor) for factor in ((right, left) if turned else (left, right)))
    seeds, batch, steps, rows, height = left.shape
    width, length = right.shape[-1], steps * rows
    tiles = tiling(height, width)
    count = -(-height // tiles.down) * -(-width // tiles.across)
    pieces = -(-batch * length // tiles.depth)  # of so many rows, the next sample's where those of one end
    parts, share = shares(pieces, most=min(PROCESSORS * tiles.together // (count * seeds), pieces // 4))
    summed = (width if turned else height) * of_left
    found = torch.empty(parts, seeds * (height * width + summed), device=left.device)  # all products, then all sums
    launch(
        outer_products, (parts, count, seeds),
        left, right, found, batch, length, share, *_strides(left), *_strides(right), height, width,
        of_left, turned, length < tiles.depth, precision if left.is_cuda else "ieee",
        like=left, num_warps=tiles.warps, num_stages=1, maxnreg=tiles.registers, **tiles.sizes,
    )  # fmt: skip
    products, sums = added_up(found).split([seeds * height * width, seeds * summed])
    return products.view(seeds, *((width, height) if turned else (height, width))), sums.view(seeds, summed)


def shares(pieces: int, most: int) -> tuple[int, int]:
    """In how many parts pieces are divided, and how many are in each; no part is empty, the last may be smaller."""
    share = -(-pieces // max(1, most))
    return -(-pieces // share), share


def _even(factor: Tensor) -> Tensor:
    """With rows of all steps of a sample at one distance from each other, and the numbers of a row side by side."""
    _, _, _, rows, _ = factor.shape
    even = factor.stride(4) == 1 and (rows == 1 or factor.stride(2) == rows * factor.stride(3))
    return factor if even else factor.contiguous()


def _strides(factor: Tensor) -> tuple[int, int, int]:
    """From a seed to the next, from a sample to the next, and from a row to the next."""
    return factor.stride(0), factor.stride(1), factor.stride(2) // factor.shape[3]


@triton.jit(do_not_specialize=["batch", "length", "share"])
def outer_products(
    left, right, found, batch, length, share,
    left_seed, left_sample, left_row, right_seed, right_sample, right_row, height, width,
    SUMMED: tl.constexpr, TURNED: tl.constexpr, SHORT: tl.constexpr, precision: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    number, tile, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns = tl.cdiv(width, ACROSS)
    down = tile // columns * DOWN + tl.arange(0, DOWN)
    along = tile % columns * ACROSS + tl.arange(0, ACROSS)
    left += seed * left_seed + down[None, :]
    right += seed * right_seed + along[None, :]
    places = (left_sample, left_row, (down < height)[None, :]), (right_sample, right_row, (along < width)[None, :])
    total = tl.zeros((DOWN, ACROSS), tl.float32)
    wide: tl.constexpr = ACROSS if TURNED else DOWN
    few: tl.constexpr = DEPTH // 4 if wide == DOWN else DEPTH  # a thread has four rows of what is as wide as that
    sums = tl.zeros((few, wide), tl.float32)
    first, end = number * share, tl.minimum(tl.cdiv(batch * length, DEPTH), (number + 1) * share)
    rows = rows_of(first, batch, length, DEPTH, SHORT)
    a, b = read(left, places[0], rows), read(right, places[1], rows)
    for piece in range(first, end):
        if SUMMED:
            sums += tl.sum(tl.reshape(b if TURNED else a, (DEPTH // few, few, wide)), 0)
        after = rows_of(tl.minimum(piece + 1, end - 1), batch, length, DEPTH, SHORT)
        if precision == "bf16x6":
            a1, a2, a3 = thirds(a)
            b1, b2, b3 = thirds(b)
            a, b = read(left, places[0], after), read(right, places[1], after)
            part = tl.dot(tl.trans(a2), b2)
            part = tl.dot(tl.trans(a1), b3, part)
            part = tl.dot(tl.trans(a3), b1, part)
            part = tl.dot(tl.trans(a1), b2, part)
            part = tl.dot(tl.trans(a2), b1, part)
            part = tl.dot(tl.trans(a1), b1, part)
        else:
            part = tl.dot(tl.trans(a), b, input_precision=precision)
            a, b = read(left, places[0], after), read(right, places[1], after)
        total += part
    seeds, size = tl.num_programs(2).to(tl.int64), height * width
    if SUMMED:
        found += number * seeds * (size + (width if TURNED else height))
        if TURNED and tile < columns:
            tl.store(found + seeds * size + seed * width + along, tl.sum(sums, 0), mask=along < width)
        if not TURNED and tile % columns == 0:
            tl.store(found + seeds * size + seed * height + down, tl.sum(sums, 0), mask=down < height)
    else:
        found += number * seeds * size
    found += seed * size
    found += along[None, :] * height + down[:, None] if TURNED else down[:, None] * width + along[None, :]
    tl.store(found, total, mask=(down < height)[:, None] & (along < width)[None, :])


@triton.jit
def rows_of(piece, batch, length, DEPTH: tl.constexpr, SHORT: tl.constexpr):
    """Samples and steps of so many rows, and which of them there are; `SHORT`: they may be those of many samples."""
    step = piece * DEPTH % length + tl.arange(0, DEPTH)
    further = step // length if SHORT else (step >= length).to(tl.int32)
    sample = piece * DEPTH // length + further
    return sample.to(tl.int64), step - further * length, sample < batch


@triton.jit
def read(factor, place, rows):
    distance, row_distance, inside = place
    sample, step, there = rows
    return tl.load(factor + (sample * distance + step * row_distance)[:, None], mask=there[:, None] & inside, other=0.0)
