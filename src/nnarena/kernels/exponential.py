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
FEW = 4  # seeds, up to which results are cut small to keep many programs busy


def unitary_exponential(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of a skew-Hermitian matrix, (2, H, H) → those of its exponential, (H, H) each."""
    found: Any = Forward.apply(parts[None])
    re, im = found[0].squeeze(0)
    return re, im


class Times(NamedTuple):
    """scale · left · right."""

    left: Tensor
    right: Tensor
    scale: float = 1.0


def sum_of(*products: Times, plus: Sequence[tuple[float, Tensor]] = (), one: float = 0.0) -> tuple[Tensor, Tensor]:
    """Σ of products, Σ of scale · matrix, and `one` times the identity; and the same conjugated and transposed."""
    like = products[0].left
    (seeds, _, size, _), out, turned = like.shape, torch.empty_like(like), torch.empty_like(like)
    tile, deep = (16, 32) if seeds <= FEW else (32, 16)
    lefts, rights, scales = zip(*products, strict=True)
    weights, matrices = tuple(weight for weight, _ in plus), tuple(matrix for _, matrix in plus)
    given = (out, turned, lefts, rights, scales, matrices, weights, one, size, tile, deep)
    launch(add_products, (-(-size // tile), -(-size // tile), seeds), *given, like=like, num_warps=4, num_stages=1)
    return out, turned


class Forward(torch.autograd.Function):
    """A → W, and what the way back needs, conjugated and transposed: a², two sums of Horner's, all powers of e^a, and
    Eᴴ E; and E as it is."""

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        A = A.contiguous()
        a2, a2_turned = sum_of(Times(A, A, SHARE**2))
        products = Times(a2, a2, C[8]), Times(A, a2, SHARE * C[7])
        high, high_turned = sum_of(*products, plus=[(C[6], a2), (SHARE * C[5], A)], one=C[4])
        low, low_turned = sum_of(Times(high, a2), plus=[(SHARE * C[3], A)], one=C[2])
        E, E_turned = sum_of(Times(low, a2), plus=[(SHARE, A)], one=1.0)
        powers = [E_turned]
        for _ in range(SQUARINGS):
            E, E_turned = sum_of(Times(E, E))
            powers.append(E_turned)
        length, length_turned = sum_of(Times(E_turned, E))
        W, _ = sum_of(Times(E, length, -0.5), plus=[(1.5, E)])
        return W, a2_turned, high_turned, low_turned, *powers, length_turned, E

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
    """The way back, as a function of its own so that `torch.vmap` folds it too: dW and what was kept → dA.

    A is skew-Hermitian: conjugated and transposed it is −A.
    """

    @staticmethod
    def forward(pull: Tensor, *kept: Tensor) -> Tensor:  # type: ignore[override]
        pull, A, a2, high, low, *powers, length, E = (part.contiguous() for part in (pull, *kept))
        of_length, of_length_turned = sum_of(Times(powers.pop(), pull, -0.5))
        products = Times(pull, length, -0.5), Times(E, of_length), Times(E, of_length_turned)
        pull, _ = sum_of(*products, plus=[(1.5, pull)])
        for power in reversed(powers):
            pull, _ = sum_of(Times(pull, power), Times(power, pull))
        of_low, _ = sum_of(Times(pull, a2))
        of_high, _ = sum_of(Times(of_low, a2))
        products = Times(of_high, a2, C[8]), Times(a2, of_high, C[8]), Times(A, of_high, -SHARE * C[7])
        of_a2, _ = sum_of(Times(low, pull), Times(high, of_low), *products, plus=[(C[6], of_high)])
        products = Times(of_a2, A, -(SHARE**2)), Times(A, of_a2, -(SHARE**2)), Times(of_high, a2, SHARE * C[7])
        return sum_of(*products, plus=[(SHARE, pull), (SHARE * C[3], of_low), (SHARE * C[5], of_high)])[0]

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
    re = tl.where((row[:, None] == column[None, :]) & there, one, 0.0)
    im = tl.zeros((TILE, TILE), tl.float32)
    for i in tl.static_range(len(plus)):  # type: ignore[misc]
        re += weights[i] * tl.load(plus[i] + place, mask=there, other=0.0)
        im += weights[i] * tl.load(plus[i] + H * H + place, mask=there, other=0.0)
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
def part_of(matrix, seed, row, column, H: tl.constexpr):
    """Some rows and columns of a seed's matrix: real and imaginary part."""
    place, there = place_of(seed, row, column, H)
    return tl.load(matrix + place, mask=there, other=0.0), tl.load(matrix + H * H + place, mask=there, other=0.0)


@triton.jit
def place_of(seed, row, column, H: tl.constexpr):
    """Where they lie, and which of them there are."""
    return seed + row[:, None] * H + column[None, :], (row < H)[:, None] & (column < H)[None, :]
