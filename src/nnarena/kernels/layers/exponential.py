"""Unitary matrices as exponentials, of many seeds at once: a dozen launches forward, a dozen back.

    e^A = (e^a)^64,  a = A / 64        e^a ≈ 1 + a + a²/2 + … + a⁸/8!, right to rounding while ‖A‖ is below 30
    W = 3/2 E − 1/2 E Eᴴ E             a step of Newton and Schulz from E = e^A to the nearest unitary matrix

The series is Horner's in a². All of it is sums of products of complex matrices, of matrices, and of the identity, each
of them a launch (`sum_of`); the gradients of C = A B are dA = dC Bᴴ and dB = Aᴴ dC, so the way back is too.

Matrices of a few seeds are small and few: not what multiplies them takes the time, but reading, waiting and launching.
Those of many keep the matrix units busy, in halves: every number is two in float16, split once by whoever computes it.
No number on the way forward is far from one. Gradients are brought there by a power of two, and grow by 2⁷ at most.

S seeds, H units. A complex matrix is (S, 2, H, H), its real and its imaginary part; in halves it is (S, 4, H, H).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.gpu.halves import LIFT, halves, largest, power, undone
from nnarena.kernels.launch import launch
from nnarena.kernels.seeds import folded, unfolded

SQUARINGS = 6
SHARE = 0.5**SQUARINGS  # a = SHARE · A
C = [1 / factorial(n) for n in range(9)]
FEW = 4  # seeds, up to which results are cut small to keep many programs busy
MANY_UNITS = 64  # units, from which on the matrix units multiply


def unitary_exponential(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of a skew-Hermitian matrix, (2, H, H) → those of its exponential, (H, H) each."""
    found: Any = Forward.apply(parts[None])
    re, im = found[0].squeeze(0)
    return re, im


class Matrix(NamedTuple):
    """numbers   of a complex matrix, (S, 2, H, H)
    factor    what products read of it: these numbers, or their halves
    turned    the same of it conjugated and transposed
    """

    numbers: Tensor
    factor: Tensor
    turned: Tensor


class Times(NamedTuple):
    """scale · left · right, of factors."""

    left: Tensor
    right: Tensor
    scale: float = 1.0


def in_halves(numbers: Tensor) -> bool:
    seeds, _, size, _ = numbers.shape
    return seeds > FEW and size >= MANY_UNITS


def begin(numbers: Tensor, scales: Tensor | None = None) -> Matrix:
    """A matrix that comes from outside. With `scales` (S), each is scaled, and by what goes there."""
    numbers = numbers.contiguous()
    if not in_halves(numbers):
        return Matrix(numbers, numbers, numbers)  # which nobody reads turned
    (seeds, _, size, _), made = numbers.shape, _empty(numbers)
    given = (numbers, *made, made.numbers if scales is None else scales, size, 32, scales is not None)
    launch(split, (-(-size // 32), -(-size // 32), seeds), *given, like=numbers, num_warps=4, num_stages=1)
    return made


def sum_of(
    *products: Times, like: Tensor, plus: Sequence[tuple[float, Tensor]] = (), one: float = 0.0, scales: Any = None
) -> Matrix:
    """Σ of products, Σ of scale · matrix, and `one` times the identity; without the `scales` of its seeds, if given."""
    seeds, _, size, _ = like.shape
    lefts, rights, factors = zip(*products, strict=True)
    weights, matrices = tuple(weight for weight, _ in plus), tuple(matrix for _, matrix in plus)
    made = _empty(like)
    if in_halves(like):
        down, across, deep = 64, 32, 64  # matrix units cut off when they add: they add few numbers, and we their sums
        given = (*made, made.numbers if scales is None else scales, lefts, rights, factors, matrices, weights, one)
        sizes = (size, down, across, deep, scales is not None)
        grid = (-(-size // down), -(-size // across), seeds)
        launch(add_products_of_halves, grid, *given, *sizes, like=like, num_warps=4, num_stages=1)
        return made
    tile, deep = (16, 32) if seeds <= FEW else (32, 16)
    given = (made.numbers, made.turned, lefts, rights, factors, matrices, weights, one, size, tile, deep)
    launch(add_products, (-(-size // tile), -(-size // tile), seeds), *given, like=like, num_warps=4, num_stages=1)
    return made


def _empty(like: Tensor) -> Matrix:
    numbers, (seeds, _, size, _) = torch.empty_like(like), like.shape
    if not in_halves(like):
        return Matrix(numbers, numbers, torch.empty_like(like))
    parts = torch.empty(2, seeds, 4, size, size, device=like.device, dtype=torch.float16)
    return Matrix(numbers, parts[0], parts[1])


class Forward(torch.autograd.Function):
    """A → W, and factors that the way back needs: A; conjugated and transposed a², two sums of Horner's, all powers of
    e^a, and Eᴴ E; and E as it is."""

    @staticmethod
    def forward(numbers: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        A = begin(numbers)
        like = A.numbers
        a2 = sum_of(Times(A.factor, A.factor, SHARE**2), like=like)
        products = Times(a2.factor, a2.factor, C[8]), Times(A.factor, a2.factor, SHARE * C[7])
        plus = [(C[6], a2.numbers), (SHARE * C[5], A.numbers)]
        high = sum_of(*products, like=like, plus=plus, one=C[4])
        low = sum_of(Times(high.factor, a2.factor), like=like, plus=[(SHARE * C[3], A.numbers)], one=C[2])
        E = sum_of(Times(low.factor, a2.factor), like=like, plus=[(SHARE, A.numbers)], one=1.0)
        powers = [E.turned]
        for _ in range(SQUARINGS):
            E = sum_of(Times(E.factor, E.factor), like=like)
            powers.append(E.turned)
        length = sum_of(Times(E.turned, E.factor), like=like)
        W = sum_of(Times(E.factor, length.factor, -0.5), like=like, plus=[(1.5, E.numbers)])
        first = [A.factor] if in_halves(like) else []  # else it is the input
        return W.numbers, *first, a2.turned, high.turned, low.turned, *powers, length.turned, E.factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*([] if in_halves(inputs[0]) else inputs), *output[1:])

    @staticmethod
    def backward(ctx: Any, pull: Tensor | None, *_: None) -> Any:  # type: ignore[override]
        return None if pull is None else Backward.apply(pull, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], A: Tensor) -> Any:  # type: ignore[override]
        return unfolded(info.batch_size, Forward.apply(folded(info.batch_size, in_dims[0], A)))  # type: ignore[arg-type]


class Backward(torch.autograd.Function):
    """The way back, as a function of its own so that `torch.vmap` folds it too: dW and what was kept → dA.

    A is skew-Hermitian: conjugated and transposed it is −A.
    """

    @staticmethod
    def forward(pull: Tensor, *kept: Tensor) -> Tensor:  # type: ignore[override]
        like, (A, a2, high, low, *powers, length, E) = pull.contiguous(), (part.contiguous() for part in kept)
        scales = like.new_empty(len(like)) if in_halves(like) else None
        of_W = begin(like, scales)
        of_length = sum_of(Times(powers.pop(), of_W.factor, -0.5), like=like)
        products = Times(of_W.factor, length, -0.5), Times(E, of_length.factor), Times(E, of_length.turned)
        of_E = sum_of(*products, like=like, plus=[(1.5, of_W.numbers)])
        for each in reversed(powers):
            of_E = sum_of(Times(of_E.factor, each), Times(each, of_E.factor), like=like)
        of_low = sum_of(Times(of_E.factor, a2), like=like)
        of_high = sum_of(Times(of_low.factor, a2), like=like)
        products = (
            Times(low, of_E.factor),
            Times(high, of_low.factor),
            Times(of_high.factor, a2, C[8]),
            Times(a2, of_high.factor, C[8]),
            Times(A, of_high.factor, -SHARE * C[7]),
        )
        of_a2 = sum_of(*products, like=like, plus=[(C[6], of_high.numbers)])
        products = (
            Times(of_a2.factor, A, -(SHARE**2)),
            Times(A, of_a2.factor, -(SHARE**2)),
            Times(of_high.factor, a2, SHARE * C[7]),
        )
        plus = [(SHARE, of_E.numbers), (SHARE * C[3], of_low.numbers), (SHARE * C[5], of_high.numbers)]
        return sum_of(*products, like=like, plus=plus, scales=scales).numbers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> Any:  # type: ignore[override]
        raise RuntimeError("A fused exponential has no second derivative: use backend='eager'.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Tensor) -> Any:  # type: ignore[override]
        parts = (folded(info.batch_size, dim, part) for dim, part in zip(in_dims, given, strict=True))
        return Backward.apply(*parts).unflatten(0, (info.batch_size, -1)), 0  # type: ignore[union-attr]


@triton.jit
def add_products(
    out, turned, lefts, rights, scales, plus, weights, one, H: tl.constexpr, TILE: tl.constexpr, DEEP: tl.constexpr
):
    """Every program has a part of the result."""
    seed = tl.program_id(2).to(tl.int64) * 2 * H * H
    row, column = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    place, there = place_of(seed, row, column, H)
    re, im = without_products(plus, weights, one, seed, row, column, H)
    for i in tl.static_range(len(lefts)):  # type: ignore[misc]
        deep = tl.arange(0, DEEP)
        a, ai = part_of(lefts[i], seed, row, deep, H)
        b, bi = part_of(rights[i], seed, deep, column, H)
        for _ in range(0, H, DEEP):
            a0, ai0, b0, bi0 = scales[i] * a, scales[i] * ai, b, bi
            deep += DEEP  # what comes next is read while these are multiplied
            a, ai = part_of(lefts[i], seed, row, deep, H)
            b, bi = part_of(rights[i], seed, deep, column, H)
            re = tl.dot(a0, b0, re, input_precision="ieee")
            im = tl.dot(a0, bi0, im, input_precision="ieee")
            re = tl.dot(-ai0, bi0, re, input_precision="ieee")
            im = tl.dot(ai0, b0, im, input_precision="ieee")
    tl.store(out + place, re, mask=there)
    tl.store(out + H * H + place, im, mask=there)
    place, there = place_of(seed, column, row, H)
    tl.store(turned + place, tl.trans(re), mask=there)
    tl.store(turned + H * H + place, -tl.trans(im), mask=there)


@triton.jit
def add_products_of_halves(
    out, factor, turned, seed_scales, lefts, rights, scales, plus, weights, one,
    H: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, DEEP: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The same on the matrix units, of factors in halves."""
    seed = tl.program_id(2).to(tl.int64) * 2 * H * H
    row, column = tl.program_id(0) * DOWN + tl.arange(0, DOWN), tl.program_id(1) * ACROSS + tl.arange(0, ACROSS)
    place, there = place_of(seed, row, column, H)
    re, im = without_products(plus, weights, one, seed, row, column, H)
    for i in tl.static_range(len(lefts)):  # type: ignore[misc]
        for first in range(0, H, DEEP):
            deep = first + tl.arange(0, DEEP)
            a, a_rest, ai, ai_rest = halves_of(lefts[i], seed, row, deep, H)
            b, b_rest, bi, bi_rest = halves_of(rights[i], seed, deep, column, H)
            rest = tl.dot(a_rest, b, tl.dot(a, b_rest)) - tl.dot(ai_rest, bi, tl.dot(ai, bi_rest))
            re += scales[i] * (tl.dot(a, b) - tl.dot(ai, bi) + rest * (1 / LIFT))
            rest = tl.dot(a_rest, bi, tl.dot(a, bi_rest, tl.dot(ai_rest, b, tl.dot(ai, b_rest))))
            im += scales[i] * (tl.dot(a, bi) + tl.dot(ai, b) + rest * (1 / LIFT))
    if SCALED:
        grow = undone(tl.load(seed_scales + tl.program_id(2)))
        re, im = re * grow, im * grow
    tl.store(out + place, re, mask=there)
    tl.store(out + H * H + place, im, mask=there)
    put_halves(factor, turned, seed, row, column, re, im, H)


@triton.jit
def split(numbers, out, factor, turned, seed_scales, H: tl.constexpr, TILE: tl.constexpr, SCALED: tl.constexpr):
    """A matrix, and its halves. If it is to be SCALED, its largest number is brought to 2⁻⁶."""
    seed = tl.program_id(2).to(tl.int64) * 2 * H * H
    row, column = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    re, im = part_of(numbers, seed, row, column, H)
    if SCALED:
        scale = power(largest(numbers + seed, 2 * H * H), -6)
        tl.store(seed_scales + tl.program_id(2), scale)
        re, im = re * scale, im * scale
    place, there = place_of(seed, row, column, H)
    tl.store(out + place, re, mask=there)
    tl.store(out + H * H + place, im, mask=there)
    put_halves(factor, turned, seed, row, column, re, im, H)


@triton.jit
def put_halves(factor, turned, seed, row, column, re, im, H: tl.constexpr):
    """Write some rows and columns of a matrix in halves, as they are, and conjugated and transposed."""
    re, re_rest = halves(re, LIFT)
    im, im_rest = halves(im, LIFT)
    place, there = place_of(2 * seed, row, column, H)
    tl.store(factor + place, re, mask=there)
    tl.store(factor + H * H + place, re_rest, mask=there)
    tl.store(factor + 2 * H * H + place, im, mask=there)
    tl.store(factor + 3 * H * H + place, im_rest, mask=there)
    place, there = place_of(2 * seed, column, row, H)
    tl.store(turned + place, tl.trans(re), mask=there)
    tl.store(turned + H * H + place, tl.trans(re_rest), mask=there)
    tl.store(turned + 2 * H * H + place, -tl.trans(im), mask=there)
    tl.store(turned + 3 * H * H + place, -tl.trans(im_rest), mask=there)


@triton.jit
def halves_of(factor, seed, row, column, H: tl.constexpr):
    """Some rows and columns of a seed's matrix: the halves of its real part, and of its imaginary part."""
    place, there = place_of(2 * seed, row, column, H)
    return (
        tl.load(factor + place, mask=there, other=0.0),
        tl.load(factor + H * H + place, mask=there, other=0.0),
        tl.load(factor + 2 * H * H + place, mask=there, other=0.0),
        tl.load(factor + 3 * H * H + place, mask=there, other=0.0),
    )


@triton.jit
def without_products(plus, weights, one, seed, row, column, H: tl.constexpr):
    """Matrices and the identity that are added up: some rows and columns of it, real and imaginary part."""
    place, there = place_of(seed, row, column, H)
    re = tl.where((row[:, None] == column[None, :]) & there, one, 0.0)
    im = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    for i in tl.static_range(len(plus)):  # type: ignore[misc]
        re += weights[i] * tl.load(plus[i] + place, mask=there, other=0.0)
        im += weights[i] * tl.load(plus[i] + H * H + place, mask=there, other=0.0)
    return re, im


@triton.jit
def part_of(matrix, seed, row, column, H: tl.constexpr):
    """Some rows and columns of a seed's matrix: real and imaginary part."""
    place, there = place_of(seed, row, column, H)
    return tl.load(matrix + place, mask=there, other=0.0), tl.load(matrix + H * H + place, mask=there, other=0.0)


@triton.jit
def place_of(seed, row, column, H: tl.constexpr):
    """Where they lie, and which of them there are."""
    return seed + row[:, None] * H + column[None, :], (row < H)[:, None] & (column < H)[None, :]
