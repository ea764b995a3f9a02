"""Gradients of weights: one product of matrices over all samples and steps, after the loop.

The result is small and what is summed is long, which leaves most of a GPU without work if every program computes a
part of the result. So each sums over a part of the samples and steps, and what they found is added up afterwards,
always in the same order. The matrix units multiply in bf16x6, three times as fast as float32.

Where it is known how large the numbers of both sides are (`Sizes`), they multiply in halves, in half the time: numbers
are brought to 2¹⁵ at most by a power of two, and each is the sum of two in float16. What is left is 2⁻⁴⁰ of the largest
number, so that all down to 2⁻¹⁶ of it are as good as in float32. That will not do where the largest are exceptions: a
gradient may grow a million times on its way back through steps whose state is zero, and what is multiplied by zero must
not decide about the rest. Whoever has seen such growth says that the size is infinite. Two kernels are launched, one in
halves and one in bf16x6; a seed is the work of one of them, and the other does nothing.

The matrix units cut off what does not fit when they add, always towards zero, and over thousands of rows that would
be seen. So they add up a few rows only, from zero; the rest is added outside of them, to the nearest number. What comes
next is read while they work.

What a product reads serves for more: for the sum of one side, the gradient of a bias, and for its product with a few
features of the input, the gradient of the weights that project them.

S seeds, B batch, T steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.compiler.plan import THIN
from nnarena.kernels.compiler.tiles import power_of_two
from nnarena.kernels.gpu.halves import halves, power, undone
from nnarena.kernels.gpu.maths import thirds
from nnarena.kernels.gpu.parts import added_up
from nnarena.kernels.launch import launch

PROCESSORS = 132  # of an H100
MOST_FEW = 16  # numbers beside a factor, with the one that gives its sum: as many as the matrix units have columns
TALL = 64  # so many numbers in a row, from which on a THIN factor of theirs is multiplied number by number


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


class Sizes(NamedTuple):
    """How large the numbers of a seed are at most, in parts, (S, P) each: of both sides, and of a few beside them.

    Infinite, if they are not to be multiplied in halves.
    """

    left: Tensor
    right: Tensor
    few: Tensor | None = None


class Products(NamedTuple):
    """What comes of a left and a right side, and of a few numbers beside them; nothing of what was not asked for.

    product   Σ of left rightᵀ, (S, K, N)
    thin      Σ of few leftᵀ, (S, F, K)
    sum       Σ of left, (S, K)
    """

    product: Tensor
    thin: Tensor
    sum: Tensor


def product_over_steps(left: Tensor, right: Tensor, precision: str) -> Tensor:
    """Σ over samples and steps of left rightᵀ, (S, K, N) from (S, B, T, rows, K) and (S, B, T, rows, N)."""
    return products_over_steps(left, right, precision).product


def product_and_sum_over_steps(left: Tensor, right: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The same, and Σ of left, (S, K), which is read anyway: the gradients of a weight and of its bias."""
    found = products_over_steps(left, right, precision, summed=True)
    return found.product, found.sum


def products_over_steps(
    left: Tensor,
    right: Tensor,
    precision: str,
    few: Tensor | None = None,
    summed: bool = False,
    sizes: Sizes | None = None,
) -> Products:
    """The same, and Σ of left times each of a few numbers (S, B, T', F), of which several rows in turn may share one.

    With it come the gradients of weights that an input of a few features meets: nobody reads left for them again.
    """
    turned = few is None and left.shape[-1] < right.shape[-1]  # the matrix units want the larger side in front
    if turned:
        left, right = right, left
        sizes = sizes and sizes._replace(left=sizes.right, right=sizes.left)
    tiles = tiling(left.shape[-1], right.shape[-1])
    if few is None or tiles.across > THIN:
        return _sums(left, right, precision, few, summed, turned, tiles, sizes)
    found = _sums(left, right, precision, None, summed, turned, tiles, sizes)
    return found._replace(thin=product_over_steps(for_every_row(few, left), left, precision))


def for_every_row(few: Tensor, factor: Tensor) -> Tensor:
    """A few numbers (S, B, T', F) that rows of a factor (S, B, T, rows, K) share, as many as those."""
    seeds, batch, steps, rows, _ = factor.shape
    few = few.unsqueeze(3).expand(-1, -1, -1, steps * rows // few.shape[2], -1)
    return few.reshape(seeds, batch, steps, rows, -1)


def _sums(
    left: Tensor,
    right: Tensor,
    precision: str,
    few: Tensor | None,
    summed: bool,
    turned: bool,
    tiles: Tiling,
    sizes: Sizes | None,
) -> Products:
    """What comes of both sides; of those of `turned` ones, the right one is summed, and the product transposed."""
    left, right = _even(left), _even(right)
    seeds, batch, steps, rows, height = left.shape
    width, length = right.shape[-1], steps * rows
    count = -(-height // tiles.down) * -(-width // tiles.across)
    work = divide(batch, length, tiles.depth, most=PROCESSORS * tiles.together // (count * seeds), rows=rows)
    if few is None:
        few = left.new_empty(1, 1, 1, 0)  # nothing, which nobody reads
    features, every = few.shape[3], length // few.shape[2] if few.shape[3] else 1
    beside = (features + summed) * (width if turned else height)
    found = torch.empty(work.programs, seeds * (height * width + beside), device=left.device)  # products, then sums
    known_enough = sizes is not None and (not features or sizes.few is not None)
    in_halves = known_enough and precision == "bf16x6" and tiles.across > THIN
    if not left.is_cuda:
        precision = "ieee"  # the interpreter is for tests
    known = [found if size is None else size.contiguous() for size in sizes or (None,) * 3]  # nobody reads what is not
    for how in ("halves", precision) if in_halves else (precision,):
        launch(
            thin_products if tiles.across <= THIN else outer_products, (work.programs, count, seeds),
            left, right, few, *known, found, batch, length, work.blocks, work.places,
            *_strides(left), *_strides(right), *few.stride(), height, width,
            features, every, summed, turned, work.by_sample, how, in_halves, known[0].shape[1],
            like=left, num_warps=tiles.warps, num_stages=1, maxnreg=tiles.registers, **tiles.sizes,
        )  # fmt: skip
    products, sums = added_up(found).split([seeds * height * width, seeds * beside])
    product = products.view(seeds, *((width, height) if turned else (height, width)))
    sums = sums.view(seeds, features + summed, product.shape[1])
    return Products(product, sums[:, :features], sums[:, features:].flatten(1))


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


def divide(batch: int, length: int, depth: int, most: int, rows: int = 1) -> Work:
    """Work for as many programs as there may be, unless that left them next to nothing to do.

    Of a sample that has several rows at every step, these lie side by side: memory brings a piece of steps sooner.
    """
    of_samples, of_steps = _used(batch, depth), _used(length, depth)
    by_sample = of_samples > of_steps or (of_samples == of_steps and rows == 1)
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


@triton.jit(do_not_specialize=["batch", "length", "own_blocks", "own_places", "parts"])
def outer_products(
    left, right, few, size_left, size_right, size_few, found, batch, length, own_blocks, own_places,
    left_seed, left_sample, left_row, right_seed, right_sample, right_row,
    few_seed, few_sample, few_row, few_feature, height, width, FEATURES: tl.constexpr, EVERY: tl.constexpr,
    SUMMED: tl.constexpr, TURNED: tl.constexpr, BY_SAMPLE: tl.constexpr, precision: tl.constexpr, SHARED: tl.constexpr,
    parts,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """FEATURES, with a one beside them which gives the sum, are sixteen at most: one more right side, if the sides are
    not TURNED; without them, threads add up what they read. Work that is SHARED is done in halves where sizes
    are finite, and by the same kernel in another precision where they are not.
    """
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
    high: tl.constexpr = DEPTH // 4 if wide == DOWN else DEPTH  # a thread has four rows of what is as wide as that
    sums = tl.zeros((high, wide), tl.float32)
    thin = tl.zeros((DOWN, 16), tl.float32)
    feature = tl.arange(0, 16)[None, :]
    few += seed * few_seed + feature * few_feature
    fews = few_sample, few_row, feature
    begin, until, first, end = share_of(number, batch, length, own_blocks, own_places, BY_SAMPLE, DEPTH)
    if SHARED:
        most_a, most_b = size_of(size_left, seed, parts), size_of(size_right, seed, parts)
        mine = tl.maximum(most_a, most_b) < float("inf")
        if precision != "halves":
            mine = ~mine
        if not mine:
            return
    if precision == "halves":
        scale_a, scale_b = power(most_a, 14), power(most_b, 14)
        if FEATURES:
            scale_x = power(tl.maximum(size_of(size_few, seed, parts), 1.0), 14)
    for block in range(begin, until):
        rows = batch - block * DEPTH if BY_SAMPLE else length
        a = read(left, lefts, row, rows, block, first, BY_SAMPLE, DEPTH)
        b = read(right, rights, row, rows, block, first, BY_SAMPLE, DEPTH)
        x = read_few(few, fews, row, rows, block, first, FEATURES, SUMMED, EVERY, BY_SAMPLE, DEPTH)
        for place in range(first, end):
            if SUMMED and not FEATURES:
                sums += tl.sum(tl.reshape(b if TURNED else a, (DEPTH // high, high, wide)), 0)
            after = tl.minimum(place + 1, end - 1)
            if precision == "bf16x6":
                a1, a2, a3 = thirds(a)
                b1, b2, b3 = thirds(b)
                if FEATURES:
                    x1, x2, x3 = thirds(x)
                a = read(left, lefts, row, rows, block, after, BY_SAMPLE, DEPTH)
                b = read(right, rights, row, rows, block, after, BY_SAMPLE, DEPTH)
                total += six_products(a1, a2, a3, b1, b2, b3)
                if FEATURES:
                    x = read_few(few, fews, row, rows, block, after, FEATURES, SUMMED, EVERY, BY_SAMPLE, DEPTH)
                    thin += six_products(a1, a2, a3, x1, x2, x3)
            elif precision == "halves":
                a1, a2 = halves(a * scale_a, 1.0)
                b1, b2 = halves(b * scale_b, 1.0)
                if FEATURES:
                    x1, x2 = halves(x * scale_x, 1.0)
                a = read(left, lefts, row, rows, block, after, BY_SAMPLE, DEPTH)
                b = read(right, rights, row, rows, block, after, BY_SAMPLE, DEPTH)
                total += three_products(a1, a2, b1, b2)
                if FEATURES:
                    x = read_few(few, fews, row, rows, block, after, FEATURES, SUMMED, EVERY, BY_SAMPLE, DEPTH)
                    thin += three_products(a1, a2, x1, x2)
            else:
                total += tl.dot(tl.trans(a), b, input_precision=precision)
                if FEATURES:
                    thin += tl.dot(tl.trans(a), x, input_precision="tf32x3" if precision == "tf32" else precision)
                a = read(left, lefts, row, rows, block, after, BY_SAMPLE, DEPTH)
                b = read(right, rights, row, rows, block, after, BY_SAMPLE, DEPTH)
                x = read_few(few, fews, row, rows, block, after, FEATURES, SUMMED, EVERY, BY_SAMPLE, DEPTH)
    if precision == "halves":
        total = total * undone(scale_a) * undone(scale_b)
        if FEATURES:
            thin = thin * undone(scale_a) * undone(scale_x)
    found, found_sums = results(found, number, seed, height, width, FEATURES + SUMMED, TURNED)
    if FEATURES:
        if tile % columns == 0:
            there = (down < height)[:, None] & (feature < FEATURES + SUMMED)
            tl.store(found_sums + feature * height + down[:, None], thin, mask=there)
    elif SUMMED and TURNED:
        if tile < columns:
            tl.store(found_sums + along, tl.sum(sums, 0), mask=along < width)
    elif SUMMED and tile % columns == 0:
        tl.store(found_sums + down, tl.sum(sums, 0), mask=down < height)
    found += along[None, :] * height + down[:, None] if TURNED else down[:, None] * width + along[None, :]
    tl.store(found, total, mask=(down < height)[:, None] & (along < width)[None, :])


@triton.jit(do_not_specialize=["batch", "length", "own_blocks", "own_places", "parts"])
def thin_products(
    left, right, few, size_left, size_right, size_few, found, batch, length, own_blocks, own_places,
    left_seed, left_sample, left_row, right_seed, right_sample, right_row,
    few_seed, few_sample, few_row, few_feature, height, width, FEATURES: tl.constexpr, EVERY: tl.constexpr,
    SUMMED: tl.constexpr, TURNED: tl.constexpr, BY_SAMPLE: tl.constexpr, precision: tl.constexpr, SHARED: tl.constexpr,
    parts,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The same where a row of `right` has a few numbers: each is multiplied with each, while memory brings the next.
    No others are beside them.

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
def read_few(
    few, distances, row, rows, block, place, FEATURES: tl.constexpr, SUMMED: tl.constexpr, EVERY: tl.constexpr,
    BY_SAMPLE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The features of what `read` reads with the same block and place, a one if their sum is wanted, and zeros."""
    of_sample, of_row, feature = distances
    if BY_SAMPLE:
        there = row < rows
        few += (row + block * DEPTH) * of_sample + place // EVERY * of_row
    else:
        there = place * DEPTH + row < rows
        few += block * of_sample + (place * DEPTH + row) // EVERY * of_row
    x = tl.load(few, mask=there & (feature < FEATURES), other=0.0)
    return tl.where(feature == FEATURES, 1.0, x) if SUMMED else x


@triton.jit
def six_products(a1, a2, a3, b1, b2, b3):
    """aᵀ b of numbers in three parts each, from zero; the smallest first."""
    part = tl.dot(tl.trans(a2), b2)
    part = tl.dot(tl.trans(a1), b3, part)
    part = tl.dot(tl.trans(a3), b1, part)
    part = tl.dot(tl.trans(a1), b2, part)
    part = tl.dot(tl.trans(a2), b1, part)
    return tl.dot(tl.trans(a1), b1, part)


@triton.jit
def three_products(a1, a2, b1, b2):
    """The same of numbers in halves."""
    part = tl.dot(tl.trans(a2), b1)
    part = tl.dot(tl.trans(a1), b2, part)
    return tl.dot(tl.trans(a1), b1, part)


@triton.jit
def size_of(sizes, seed, parts):
    """How large the numbers of a seed are at most, in as many parts as there are."""
    most = 0.0
    for first in range(0, parts, 64):
        part = first + tl.arange(0, 64)
        most = tl.maximum(most, tl.max(tl.load(sizes + seed * parts + part, mask=part < parts, other=0.0), 0))
    return most


@triton.jit
def results(found, number, seed, height, width, SUMS: tl.constexpr, TURNED: tl.constexpr):
    """Where a program writes the product of a seed, and its sums: first come all products, then all sums."""
    seeds, size = tl.num_programs(2).to(tl.int64), height * width
    summed = (width if TURNED else height) * SUMS
    found += number * seeds * (size + summed)
    return found + seed * size, found + seeds * size + seed * summed
