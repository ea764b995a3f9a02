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
from nnarena.kernels.tiles import power_of_two

PROCESSORS = 132  # of an H100
THIN, TALL = 4, 64  # so few numbers in a row are multiplied one by one, if there are so many to multiply them with


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
    if width <= THIN and height >= TALL:
        return Tiling(128, power_of_two(width), 8, warps=4, together=6, registers=None)
    tall, wide = (-(-size // 64) % 2 == 0 for size in (height, width))  # whether 128 wastes no more than 64 does
    if wide:
        return Tiling(64, 128, 32, warps=4, together=2, registers=None)
    across = next(size for size in (16, 32, 64) if size >= min(width, 64))
    if tall:
        return Tiling(128, across, 32, warps=8, together=2, registers=128)
    together, registers = {64: (3, 168), 32: (4, 128), 16: (6, 80)}[across]
    return Tiling(64, across, 32, 4, together, registers)


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
    work = divide(batch, length, tiles.depth, most=PROCESSORS * tiles.together // (count * seeds))
    summed = (width if turned else height) * of_left
    found = torch.empty(work.programs, seeds * (height * width + summed), device=left.device)  # products, then sums
    launch(
        thin_products if tiles.across <= THIN else outer_products, (work.programs, count, seeds),
        left, right, found, batch, length, work.blocks, work.places,
        *_strides(left), *_strides(right), height, width,
        of_left, turned, work.by_sample, precision if left.is_cuda else "ieee",
        like=left, num_warps=tiles.warps, num_stages=1, maxnreg=tiles.registers, **tiles.sizes,
    )  # fmt: skip
    products, sums = added_up(found).split([seeds * height * width, seeds * summed])
    return products.view(seeds, *((width, height) if turned else (height, width))), sums.view(seeds, summed)


class Work(NamedTuple):
    """How samples and steps are divided among programs.

    by_sample   what a program reads at a time is a block of samples at one step; else one sample, at a piece of steps
    blocks      so many of those blocks, or of those samples, has a program
    places      and of each so many of those steps, or of those pieces: it goes from one to the next by moving on, while
                a block that begins must be found first
    programs    that there are
    """

    by_sample: bool
    blocks: int
    places: int
    programs: int


def divide(batch: int, length: int, depth: int, most: int) -> Work:
    """Work for as many programs as there may be, unless that left them next to nothing to do."""
    by_sample = _used(batch, depth) >= _used(length, depth)
    all_blocks, all_places = (-(-batch // depth), length) if by_sample else (batch, -(-length // depth))
    groups, blocks = shares(all_blocks, most)
    parts, places = shares(all_places, min(most // groups, all_places * blocks // 4))
    return Work(by_sample, blocks, places, groups * parts)


def _used(rows: int, depth: int) -> float:
    """Which part of all that is read at a time there is."""
    return rows / (-(-rows // depth) * depth)


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


@triton.jit(do_not_specialize=["batch", "length", "own_blocks", "own_places"])
def outer_products(
    left, right, found, batch, length, own_blocks, own_places,
    left_seed, left_sample, left_row, right_seed, right_sample, right_row, height, width,
    SUMMED: tl.constexpr, TURNED: tl.constexpr, BY_SAMPLE: tl.constexpr, precision: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    number, tile, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns = tl.cdiv(width, ACROSS)
    down = tile // columns * DOWN + tl.arange(0, DOWN)
    along = tile % columns * ACROSS + tl.arange(0, ACROSS)
    row = tl.arange(0, DEPTH)[:, None]
    left += seed * left_seed + down[None, :]
    right += seed * right_seed + along[None, :]
    lefts = left_sample, left_row, (down < height)[None, :]
    rights = right_sample, right_row, (along < width)[None, :]
    total = tl.zeros((DOWN, ACROSS), tl.float32)
    wide: tl.constexpr = ACROSS if TURNED else DOWN
    few: tl.constexpr = DEPTH // 4 if wide == DOWN else DEPTH  # a thread has four rows of what is as wide as that
    sums = tl.zeros((few, wide), tl.float32)
    begin, until, first, end = share_of(number, batch, length, own_blocks, own_places, BY_SAMPLE, DEPTH)
    for block in range(begin, until):
        rows = batch - block * DEPTH if BY_SAMPLE else length
        a = read(left, lefts, row, rows, block, first, BY_SAMPLE, DEPTH)
        b = read(right, rights, row, rows, block, first, BY_SAMPLE, DEPTH)
        for place in range(first, end):
            if SUMMED:
                sums += tl.sum(tl.reshape(b if TURNED else a, (DEPTH // few, few, wide)), 0)
            after = tl.minimum(place + 1, end - 1)
            if precision == "bf16x6":
                a1, a2, a3 = thirds(a)
                b1, b2, b3 = thirds(b)
                a = read(left, lefts, row, rows, block, after, BY_SAMPLE, DEPTH)
                b = read(right, rights, row, rows, block, after, BY_SAMPLE, DEPTH)
                part = tl.dot(tl.trans(a2), b2)
                part = tl.dot(tl.trans(a1), b3, part)
                part = tl.dot(tl.trans(a3), b1, part)
                part = tl.dot(tl.trans(a1), b2, part)
                part = tl.dot(tl.trans(a2), b1, part)
                part = tl.dot(tl.trans(a1), b1, part)
            else:
                part = tl.dot(tl.trans(a), b, input_precision=precision)
                a = read(left, lefts, row, rows, block, after, BY_SAMPLE, DEPTH)
                b = read(right, rights, row, rows, block, after, BY_SAMPLE, DEPTH)
            total += part
    found, found_sums = results(found, number, seed, height, width, SUMMED, TURNED)
    if SUMMED and TURNED and tile < columns:
        tl.store(found_sums + along, tl.sum(sums, 0), mask=along < width)
    if SUMMED and not TURNED and tile % columns == 0:
        tl.store(found_sums + down, tl.sum(sums, 0), mask=down < height)
    found += along[None, :] * height + down[:, None] if TURNED else down[:, None] * width + along[None, :]
    tl.store(found, total, mask=(down < height)[:, None] & (along < width)[None, :])


@triton.jit(do_not_specialize=["batch", "length", "own_blocks", "own_places"])
def thin_products(
    left, right, found, batch, length, own_blocks, own_places,
    left_seed, left_sample, left_row, right_seed, right_sample, right_row, height, width,
    SUMMED: tl.constexpr, TURNED: tl.constexpr, BY_SAMPLE: tl.constexpr, precision: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The same where a row of `right` has a few numbers: each is multiplied with each, while memory brings the next.

    Threads add up what they read on their own, and all together in the end.
    """
    number, tile, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    down, along = tile * DOWN + tl.arange(0, DOWN)[None, None, :], tl.arange(0, ACROSS)[:, None, None]
    row = tl.arange(0, DEPTH)[None, :, None]
    left += seed * left_seed + down
    right += seed * right_seed + along
    lefts = left_sample, left_row, down < height
    rights = right_sample, right_row, along < width
    total = tl.zeros((ACROSS, DEPTH, DOWN), tl.float32)
    sums = tl.zeros((ACROSS, DEPTH, 1) if TURNED else (1, DEPTH, DOWN), tl.float32)
    begin, until, first, end = share_of(number, batch, length, own_blocks, own_places, BY_SAMPLE, DEPTH)
    for block in range(begin, until):
        rows = batch - block * DEPTH if BY_SAMPLE else length
        a = read(left, lefts, row, rows, block, first, BY_SAMPLE, DEPTH)
        b = read(right, rights, row, rows, block, first, BY_SAMPLE, DEPTH)
        for place in range(first, end):
            if SUMMED:
                sums += b if TURNED else a
            total += a * b
            after = tl.minimum(place + 1, end - 1)
            a = read(left, lefts, row, rows, block, after, BY_SAMPLE, DEPTH)
            b = read(right, rights, row, rows, block, after, BY_SAMPLE, DEPTH)
    found, found_sums = results(found, number, seed, height, width, SUMMED, TURNED)
    if SUMMED and TURNED and tile == 0:
        tl.store(found_sums + along, tl.sum(sums, 1, keep_dims=True), mask=along < width)
    if SUMMED and not TURNED:
        tl.store(found_sums + down, tl.sum(sums, 1, keep_dims=True), mask=down < height)
    found += along * height + down if TURNED else down * width + along
    tl.store(found, tl.sum(total, 1, keep_dims=True), mask=(down < height) & (along < width))


@triton.jit
def share_of(number, batch, length, own_blocks, own_places, BY_SAMPLE: tl.constexpr, DEPTH: tl.constexpr):
    """Blocks and places of a program: from, to; in 64 bits, because memory may be larger than 32 can count."""
    number = number.to(tl.int64)
    if BY_SAMPLE:
        all_blocks, all_places = tl.cdiv(batch, DEPTH), length
    else:
        all_blocks, all_places = batch, tl.cdiv(length, DEPTH)
    parts = tl.cdiv(all_places, own_places)
    begin, first = number // parts * own_blocks, number % parts * own_places
    return begin, tl.minimum(all_blocks, begin + own_blocks), first, tl.minimum(all_places, first + own_places)


@triton.jit
def read(factor, distances, row, rows, block, place, BY_SAMPLE: tl.constexpr, DEPTH: tl.constexpr):
    """What a block has at a place. What is the same at all places comes first, so that it is computed once."""
    of_sample, of_row, inside = distances
    if BY_SAMPLE:
        factor += (row + block * DEPTH) * of_sample
        return tl.load(factor + place * of_row, mask=(row < rows) & inside, other=0.0)
    else:
        factor += row * of_row + block * of_sample
        return tl.load(factor + place * DEPTH * of_row, mask=(row < rows - place * DEPTH) & inside, other=0.0)


@triton.jit
def results(found, number, seed, height, width, SUMMED: tl.constexpr, TURNED: tl.constexpr):
    """Where a program writes the product of a seed, and its sum: first come all products, then all sums."""
    seeds, size = tl.num_programs(2).to(tl.int64), height * width
    summed = (width if TURNED else height) if SUMMED else 0
    found += number * seeds * (size + summed)
    return found + seed * size, found + seeds * size + seed * summed
