"""Unitary matrices as exponentials, of many seeds at once: a dozen launches forward, a dozen back.

    e^A = (e^a)^64,  a = A / 64        e^a ≈ 1 + a + a²/2 + … + a⁸/8!, right to rounding while ‖A‖ is below 30
    W = 3/2 E − 1/2 E Eᴴ E             a step of Newton and Schulz from E = e^A to the nearest unitary matrix

The series is Horner's in a². All of it is sums of products of complex matrices, of matrices, and of the identity, each
of them a launch (`sum_of`); the gradients of C = A B are dA = dC Bᴴ and dB = Aᴴ dC, so the way back is too. Matrices
are small and few: not the units that multiply them take the time, but reading, waiting and launching.

S seeds, H units. A complex matrix is (S, 2, H, H), its real and its imaginary part.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.launch import launch
from nnarena.kernels.seeds import folded, unfolded

SQUARINGS = 6
SHARE = 0.5**SQUARINGS  # a = SHARE · A
C = [1 / factorial(power) for power in range(9)]
DOWN, ACROSS = 16, 32  # entries of a result that a program has
DEEP = 32  # terms of a sum that it reads at a time


def unitary_exponential(re: Tensor, im: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of a skew-Hermitian matrix, (H, H) each → those of its exponential."""
    found: Any = Forward.apply(torch.stack([re, im])[None])
    re, im = found[0].squeeze(0)
    return re, im


class Times(NamedTuple):
    """scale · left · right, where either may be conjugated and transposed."""

    left: Tensor
    right: Tensor
    scale: float = 1.0
    left_turned: bool = False
    right_turned: bool = False


def sum_of(*products: Times, plus: Sequence[tuple[float, Tensor]] = (), one: float = 0.0) -> Tensor:
    """Σ of products, Σ of scale · matrix, and `one` times the identity."""
    like = products[0].left
    (seeds, _, size, _), out = like.shape, torch.empty_like(like)
    grid = -(-size // DOWN), -(-size // ACROSS), seeds
    lefts, rights, scales, turned = zip(*((*each[:3], each[3:]) for each in products), strict=True)
    weights, matrices = tuple(weight for weight, _ in plus), tuple(matrix for _, matrix in plus)
    given = (out, lefts, rights, scales, matrices, weights, one, turned, size, DOWN, ACROSS, DEEP)
    launch(add_products, grid, *given, like=like, num_warps=4, num_stages=1)
    return out


class Forward(torch.autograd.Function):
    """A → W, and what the way back needs: a², two sums of Horner's, all powers of e^a, and Eᴴ E."""

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        A = A.contiguous()
        a2 = sum_of(Times(A, A, SHARE**2))
        high = sum_of(Times(a2, a2, C[8]), Times(A, a2, SHARE * C[7]), plus=[(C[6], a2), (SHARE * C[5], A)], one=C[4])
        low = sum_of(Times(high, a2), plus=[(SHARE * C[3], A)], one=C[2])
        powers = [sum_of(Times(low, a2), plus=[(SHARE, A)], one=1.0)]
        for _ in range(SQUARINGS):
            powers.append(sum_of(Times(powers[-1], powers[-1])))
        E = powers[-1]
        length = sum_of(Times(E, E, left_turned=True))
        return sum_of(Times(E, length, -0.5), plus=[(1.5, E)]), a2, high, low, *powers, length

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, pull: Tensor | None, *_: None) -> Any:  # type: ignore[override]
        return None if pull is None else Backward.apply(pull, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], A: Tensor) -> Any:  # type: ignore[override]
        return unfolded(info.batch_size, Forward.apply(folded(info.batch_size, in_dims[0], A)))  # type: ignore[arg-type]


class Backward(torch.autograd.Function):
    """The way back, as a function of its own so that `torch.vmap` folds it too: dW and what was kept → dA."""

    @staticmethod
    def forward(pull: Tensor, *kept: Tensor) -> Tensor:  # type: ignore[override]
        pull, A, a2, high, low, *powers, length = (part.contiguous() for part in (pull, *kept))
        E = powers.pop()
        of_length = sum_of(Times(E, pull, -0.5, left_turned=True))
        pull = sum_of(
            Times(pull, length, -0.5, right_turned=True),
            Times(E, of_length),
            Times(E, of_length, right_turned=True),
            plus=[(1.5, pull)],
        )
        for power in reversed(powers):
            pull = sum_of(Times(pull, power, right_turned=True), Times(power, pull, left_turned=True))
        of_low = sum_of(Times(pull, a2, right_turned=True))
        of_high = sum_of(Times(of_low, a2, right_turned=True))
        of_a2 = sum_of(
            Times(low, pull, left_turned=True),
            Times(high, of_low, left_turned=True),
            Times(of_high, a2, C[8], right_turned=True),
            Times(a2, of_high, C[8], left_turned=True),
            Times(A, of_high, SHARE * C[7], left_turned=True),
            plus=[(C[6], of_high)],
        )
        return sum_of(
            Times(of_a2, A, SHARE**2, right_turned=True),
            Times(A, of_a2, SHARE**2, left_turned=True),
            Times(of_high, a2, SHARE * C[7], right_turned=True),
            plus=[(SHARE, pull), (SHARE * C[3], of_low), (SHARE * C[5], of_high)],
        )

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
    out, lefts, rights, scales, plus, weights, one, TURNED: tl.constexpr,
    H: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Every program has a part of the result. TURNED: of each product, who is conjugated and transposed."""
    seed = tl.program_id(2).to(tl.int64) * 2 * H * H
    row, column = tl.program_id(0) * DOWN + tl.arange(0, DOWN), tl.program_id(1) * ACROSS + tl.arange(0, ACROSS)
    place, inside = seed + row[:, None] * H + column[None, :], (row < H)[:, None] & (column < H)[None, :]
    re = tl.where((row[:, None] == column[None, :]) & inside, one, 0.0)
    im = tl.zeros((DOWN, ACROSS), tl.float32)
    for i in tl.static_range(len(plus)):  # type: ignore[misc]
        re += weights[i] * tl.load(plus[i] + place, mask=inside, other=0.0)
        im += weights[i] * tl.load(plus[i] + H * H + place, mask=inside, other=0.0)
    for i in tl.static_range(len(lefts)):  # type: ignore[misc]
        left, right, deep = lefts[i] + seed, rights[i] + seed, tl.arange(0, DEEP)
        a, ai = part_of(left, row, deep, TURNED[i][0], H)
        b, bi = part_of(right, deep, column, TURNED[i][1], H)
        for _ in range(0, H, DEEP):
            a0, ai0, b0, bi0 = scales[i] * a, scales[i] * ai, b, bi
            deep += DEEP  # what comes next is read while these are multiplied
            a, ai = part_of(left, row, deep, TURNED[i][0], H)
            b, bi = part_of(right, deep, column, TURNED[i][1], H)
            re = tl.dot(a0, b0, re, input_precision="ieee")
            im = tl.dot(a0, bi0, im, input_precision="ieee")
            re = tl.dot(-ai0, bi0, re, input_precision="ieee")
            im = tl.dot(ai0, b0, im, input_precision="ieee")
    tl.store(out + place, re, mask=inside)
    tl.store(out + H * H + place, im, mask=inside)


@triton.jit
def part_of(matrix, row, column, TURNED: tl.constexpr, H: tl.constexpr):
    """Some rows and columns of a matrix, or of that matrix conjugated and transposed: real and imaginary part."""
    place = column[None, :] * H + row[:, None] if TURNED else row[:, None] * H + column[None, :]
    there = (row < H)[:, None] & (column < H)[None, :]
    re, im = tl.load(matrix + place, mask=there, other=0.0), tl.load(matrix + H * H + place, mask=there, other=0.0)
    return re, -im if TURNED else im
