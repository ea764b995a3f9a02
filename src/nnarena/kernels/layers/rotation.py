"""Unitary matrices as products of rotations of neighbours, of many seeds at once: one kernel forward, one back.

    a ← cos θ · a − sin θ · e^{iφ} b        b ← sin θ · a + cos θ · e^{iφ} b        and e^{iω} h at the end

`UnitaryRNN.rotate` of the rows of the identity, layer by layer. Rows know nothing of each other: a program has a few
of them, one thread has the same columns of all of these, and nothing leaves the registers before the last layer. A
rotation is undone by turning back, so that nothing is kept for the way back but the result: its rows and their
gradients go through the layers in reverse. What programs find of the angles is added up in the same order every time.

Every step is one and the same turn of a plane, (x, y) by an angle α: with e^{iφ} and e^{iω} of a real and an imaginary
part, with θ of two neighbours. Its gradient is turned back as (x, y) are, and that of α is x dy − y dx, of the turned.

S seeds, H units, L layers of rotations, P programs of a seed. Even units are a, odd ones are b.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.compiler.tiles import power_of_two
from nnarena.kernels.gpu.parts import added_up
from nnarena.kernels.launch import launch
from nnarena.kernels.seeds import folded, unfolded

ROWS = 2  # that a program has: more wait longer, fewer compute the same cosines more often
PAIRS = 256  # of neighbours in these rows, at most: each is four numbers, and eight on the way back


def rotated_identity(*angles: Tensor) -> tuple[Tensor, ...]:
    """θ (L/2, H−1), φ likewise, ω (H) → the real and the imaginary part of Wᵀ, (H, H) each; θ alone → the real one."""
    parts: Any = Forward.apply(*(angle[None] for angle in angles))
    return tuple(part.squeeze(0) for part in parts)


class Forward(torch.autograd.Function):
    """(S, L/2, H−1), (S, L/2, H−1), (S, H) → (S, H, H), (S, H, H); the first → the first."""

    @staticmethod
    def forward(*angles: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        angles = tuple(angle.contiguous() for angle in angles)
        (seeds, _, columns), sizes = angles[0].shape, _sizes(angles[0])
        shape = seeds, columns + 1, columns + 1
        parts = tuple(angles[0].new_empty(shape) for _ in angles[:2])
        grid = _programs(sizes), seeds
        launch(forward, grid, *_padded(angles, 3), *_padded(parts, 2), like=angles[0], **sizes)
        return parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.count = len(inputs)

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> Any:  # type: ignore[override]
        return Backward.apply(ctx.count, *ctx.saved_tensors, *pulls)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Tensor) -> Any:  # type: ignore[override]
        parts = (folded(info.batch_size, dim, part) for dim, part in zip(in_dims, given, strict=True))
        return unfolded(info.batch_size, Forward.apply(*parts))  # type: ignore[arg-type]


class Backward(torch.autograd.Function):
    """The way back, as a function of its own so that `torch.vmap` folds it too: so many angles, the parts that came
    of them, what pulls at these → what pulls at the angles."""

    @staticmethod
    def forward(count: int, *given: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        given = tuple(part.contiguous() for part in given)
        angles, rest = given[:count], given[count:]
        parts, pulls = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        sizes, counts = _sizes(angles[0]), [angle.numel() for angle in angles]
        sums = angles[0].new_empty(_programs(sizes), sum(counts))
        arguments = (*_padded(angles, 3), *_padded(parts, 2), *_padded(pulls, 2), sums, sums.shape[1])
        launch(backward, (len(sums), len(angles[0])), *arguments, like=sums, **sizes)
        pieces = added_up(sums).split(counts)
        return tuple(piece.view(angle.shape) for piece, angle in zip(pieces, angles, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> Any:  # type: ignore[override]
        raise RuntimeError("A fused product of rotations has no second derivative: use backend='eager'.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], count: int, *given: Tensor) -> Any:  # type: ignore[override]
        parts = (folded(info.batch_size, dim, part) for dim, part in zip(in_dims[1:], given, strict=True))
        return unfolded(info.batch_size, Backward.apply(count, *parts))  # type: ignore[arg-type]


def _padded(tensors: tuple[Tensor, ...], count: int) -> tuple[Tensor | None, ...]:
    """What a kernel is given in their places: real matrices have no φ, no ω and no imaginary part."""
    return *tensors, *(None,) * (count - len(tensors))


def _sizes(theta: Tensor) -> dict[str, int]:
    twos, units = theta.shape[1], theta.shape[2] + 1
    pad = power_of_two(units // 2)
    return {"H": units, "L": 2 * twos, "PAD": pad, "ROWS": max(1, min(ROWS, PAIRS // pad)), "num_warps": 1}


def _programs(sizes: dict[str, int]) -> int:
    return -(-sizes["H"] // sizes["ROWS"])


@triton.jit
def forward(theta, phi, omega, re, im, H: tl.constexpr, L: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr):
    """Layers come in twos. In the first, column j has the pair (a_u, b_u), in the second (b_u, a_{u+1}), and then
    (a_{u+1}, b_{u+1}): first all a and then all b move a column on, none moves back, and u = j + half the layers so
    far. The last of all units meets the first, by an angle of zero. What columns from H/2 on hold is never read."""
    seed = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PAD)
    a_re = (row[:, None] == unit_of(column, 0, H)[None, :]).to(tl.float32)
    b_re = (row[:, None] == unit_of(column, 0, H)[None, :] + 1).to(tl.float32)
    a_im = tl.zeros((ROWS, PAD), tl.float32)
    b_im = tl.zeros((ROWS, PAD), tl.float32)
    here = column < H // 2
    ahead = tl.broadcast_to(((column + 1) % (H // 2))[None, :], (ROWS, PAD))
    for two in range(L // 2):
        unit = unit_of(column, two, H)
        place = (seed * (L // 2) + two) * (H - 1) + unit
        a_re, a_im, b_re, b_im = mixed(a_re, a_im, b_re, b_im, theta, phi, place, here)
        a_re, a_im = tl.gather(a_re, ahead, 1), tl.gather(a_im, ahead, 1)
        b_re, b_im, a_re, a_im = mixed(b_re, b_im, a_re, a_im, theta, phi, place + 1, here & (unit < H - 2))
        b_re, b_im = tl.gather(b_re, ahead, 1), tl.gather(b_im, ahead, 1)
    unit = unit_of(column, L // 2, H)
    place = (seed * H + row[:, None]) * H + unit[None, :]
    there = (row < H)[:, None] & here[None, :]
    if omega is not None:
        a_angle, b_angle = pair_at(omega + seed * H + unit, here)
        a_cos, a_sin = circle(a_angle)
        b_cos, b_sin = circle(b_angle)
        a_re, a_im = turned(a_re, a_im, a_cos, a_sin)
        b_re, b_im = turned(b_re, b_im, b_cos, b_sin)
        tl.store(im + place, a_im, mask=there)
        tl.store(im + place + 1, b_im, mask=there)
    tl.store(re + place, a_re, mask=there)
    tl.store(re + place + 1, b_re, mask=there)


@triton.jit
def backward(
    theta,
    phi,
    omega,
    re,
    im,
    pull_re,
    pull_im,
    sums,
    length,
    H: tl.constexpr,
    L: tl.constexpr,
    PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The same in reverse, of the rows and of their gradients, x and dx. `sums` is (P, θ φ ω of all seeds)."""
    seed = tl.program_id(1).to(tl.int64)
    angles = tl.num_programs(1).to(tl.int64) * (L // 2) * (H - 1)  # θ of all seeds
    sums += tl.program_id(0).to(tl.int64) * length
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PAD)
    unit = unit_of(column, L // 2, H)
    entry = (seed * H + row[:, None]) * H + unit[None, :]
    here = column < H // 2
    inside = (row < H)[:, None] & here[None, :]
    a_re, b_re = pair_at(re + entry, inside)
    da_re, db_re = pair_at(pull_re + entry, inside)
    a_im = tl.zeros((ROWS, PAD), tl.float32)
    b_im = tl.zeros((ROWS, PAD), tl.float32)
    da_im = tl.zeros((ROWS, PAD), tl.float32)
    db_im = tl.zeros((ROWS, PAD), tl.float32)
    if omega is not None:
        a_im, b_im = pair_at(im + entry, inside)
        da_im, db_im = pair_at(pull_im + entry, inside)
        of_omega = sums + 2 * angles + seed * H + unit
        tl.store(of_omega, tl.sum(slope(a_re, a_im, da_re, da_im), 0), mask=here)
        tl.store(of_omega + 1, tl.sum(slope(b_re, b_im, db_re, db_im), 0), mask=here)
        a_angle, b_angle = pair_at(omega + seed * H + unit, here)
        a_cos, a_sin = circle(a_angle)
        b_cos, b_sin = circle(b_angle)
        a_re, a_im = turned(a_re, a_im, a_cos, -a_sin)
        b_re, b_im = turned(b_re, b_im, b_cos, -b_sin)
        da_re, da_im = turned(da_re, da_im, a_cos, -a_sin)
        db_re, db_im = turned(db_re, db_im, b_cos, -b_sin)
    behind = tl.broadcast_to(((column + H // 2 - 1) % (H // 2))[None, :], (ROWS, PAD))
    for back in range(L // 2):
        two = L // 2 - 1 - back
        unit = unit_of(column, two, H)
        place = (seed * (L // 2) + two) * (H - 1) + unit
        b_re, b_im = tl.gather(b_re, behind, 1), tl.gather(b_im, behind, 1)
        db_re, db_im = tl.gather(db_re, behind, 1), tl.gather(db_im, behind, 1)
        there = here & (unit < H - 2)
        b_re, b_im, a_re, a_im, db_re, db_im, da_re, da_im = unmixed(
            b_re, b_im, a_re, a_im, db_re, db_im, da_re, da_im, theta, phi, place + 1, there, sums, angles
        )
        a_re, a_im = tl.gather(a_re, behind, 1), tl.gather(a_im, behind, 1)
        da_re, da_im = tl.gather(da_re, behind, 1), tl.gather(da_im, behind, 1)
        a_re, a_im, b_re, b_im, da_re, da_im, db_re, db_im = unmixed(
            a_re, a_im, b_re, b_im, da_re, da_im, db_re, db_im, theta, phi, place, here, sums, angles
        )


@triton.jit
def unit_of(column, two, H: tl.constexpr):
    """Which even unit stands in a column after so many twos of layers."""
    return 2 * ((column + two) % (H // 2))


@triton.jit
def pair_at(place, there):
    """What stands at an even unit and at the next."""
    return tl.load(place, mask=there, other=0.0), tl.load(place + 1, mask=there, other=0.0)


@triton.jit
def mixed(a_re, a_im, b_re, b_im, theta, phi, place, there):
    """One layer: b by φ, then (a, b) by θ."""
    cos, sin = circle(tl.load(theta + place, mask=there, other=0.0))
    if phi is not None:
        phase_cos, phase_sin = circle(tl.load(phi + place, mask=there, other=0.0))
        b_re, b_im = turned(b_re, b_im, phase_cos, phase_sin)
        a_im, b_im = turned(a_im, b_im, cos, sin)
    a_re, b_re = turned(a_re, b_re, cos, sin)
    return a_re, a_im, b_re, b_im


@triton.jit
def unmixed(a_re, a_im, b_re, b_im, da_re, da_im, db_re, db_im, theta, phi, place, there, sums, angles):
    """One layer undone; what its angles get goes to `sums`, that of φ so many `angles` behind that of θ."""
    of_theta = slope(a_re, b_re, da_re, db_re)
    cos, sin = circle(tl.load(theta + place, mask=there, other=0.0))
    a_re, b_re = turned(a_re, b_re, cos, -sin)
    da_re, db_re = turned(da_re, db_re, cos, -sin)
    if phi is not None:
        of_theta += slope(a_im, b_im, da_im, db_im)
        a_im, b_im = turned(a_im, b_im, cos, -sin)
        da_im, db_im = turned(da_im, db_im, cos, -sin)
        tl.store(sums + angles + place, tl.sum(slope(b_re, b_im, db_re, db_im), 0), mask=there)
        cos, sin = circle(tl.load(phi + place, mask=there, other=0.0))
        b_re, b_im = turned(b_re, b_im, cos, -sin)
        db_re, db_im = turned(db_re, db_im, cos, -sin)
    tl.store(sums + place, tl.sum(of_theta, 0), mask=there)
    return a_re, a_im, b_re, b_im, da_re, da_im, db_re, db_im


@triton.jit
def turned(x, y, cos, sin):
    return x * cos[None, :] - y * sin[None, :], x * sin[None, :] + y * cos[None, :]


@triton.jit
def slope(x, y, dx, dy):
    """What the angle gets by which (x, y) have been turned."""
    return x * dy - y * dx


@triton.jit
def circle(angle):
    """Cosine and sine, to 1e-7. What Triton has is twice as long, and under some versions goes through memory.

    The nearest multiple of π/2 is taken away in three parts, the first of which has 8 bits and the second 11, so that
    their products with small whole numbers are exact. Up to π/4, series to x⁹ and x¹⁰ miss the rest by less than 2e-9.
    It is held below 1, even if an angle of millions has lost its digits: a turn stays a turn.
    """
    quarters = tl.floor(angle * 0.6366197723675814 + 0.5)
    x = angle - quarters * 1.5703125
    x = x - quarters * 0.0004837512969970703
    x = x - quarters * 7.549790126404332e-08
    x = tl.clamp(x, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
    z = x * x
    p = z * (1 / 362880) - 1 / 5040
    p = p * z + 1 / 120
    p = p * z - 1 / 6
    sin = x + x * (z * p)
    p = z * (-1 / 3628800) + 1 / 40320
    p = p * z - 1 / 720
    p = p * z + 1 / 24
    cos = 1.0 - (0.5 * z - z * z * p)
    quarter = quarters.to(tl.int32) & 3
    odd = (quarter & 1) == 1
    along, across = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    return (
        tl.where((quarter == 1) | (quarter == 2), -along, along),
        tl.where(quarter >= 2, -across, across),
    )
