"""Where a tensor is read: one affine index a dimension.

A view, a slice, a transposition or a concatenation is never carried out. It only changes the index at which its
source is read: to read `x[:, 64:128].t()` at (i, j) is to read x at (j, 64 + i). What is left of a graph are the
numbers that must be computed, each at the place where it is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnarena.kernels.compiler.trace import CannotCompile


class Axis:
    """A dimension of a tile: 0 … size − 1, padded to a power of two. One axis is one object."""

    def __init__(self, size: int, pad: int = 1) -> None:
        self.size = size
        self.pad = max(pad, 1 << (size - 1).bit_length())

    def __repr__(self) -> str:
        return f"Axis({self.size})"


@dataclass(frozen=True)
class Affine:
    """offset + Σ stride · axis."""

    offset: int
    terms: tuple[tuple[Axis, int], ...] = ()

    def __add__(self, offset: int) -> Affine:
        return Affine(self.offset + offset, self.terms)

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.offset * factor, tuple((axis, stride * factor) for axis, stride in self.terms))

    def plus(self, other: Affine) -> Affine:
        return Affine(self.offset + other.offset, self.terms + other.terms)

    @property
    def low(self) -> int:
        return self.offset + sum(min(0, stride * (axis.size - 1)) for axis, stride in self.terms)

    @property
    def high(self) -> int:
        return self.offset + sum(max(0, stride * (axis.size - 1)) for axis, stride in self.terms)


Index = tuple[Affine, ...]
ZERO = Affine(0)


class Straddle(Exception):
    """An axis runs over a seam of what it reads: whoever made the axis must cut it before element `at`."""

    def __init__(self, axis: Axis, at: int) -> None:
        self.axis, self.at = axis, at


class Factor(Exception):
    """An axis runs over two dimensions at once: whoever made it must make two, the inner one of `inner` elements."""

    def __init__(self, axis: Axis, inner: int) -> None:
        self.axis, self.inner = axis, inner


class Repad(Exception):
    """An axis meets a tile that is padded to `pad` along it: whoever made the axis must make one that is padded so."""

    def __init__(self, axis: Axis, pad: int) -> None:
        self.axis, self.pad = axis, pad


def axes_of(index: Index) -> tuple[Axis, ...]:
    return tuple(dict.fromkeys(axis for part in index for axis, _ in part.terms))


def cut(index: Affine, at: int) -> None:
    """Raise the Straddle that parts `index` before element `at` of its dimension, unless it lies on one side."""
    if index.high < at or index.low >= at:
        return
    for axis, stride in sorted(index.terms, key=lambda term: -abs(term[1])):
        rest = Affine(index.offset, tuple(term for term in index.terms if term[0] is not axis))
        sides = [(rest.high + stride * i < at, rest.low + stride * i >= at) for i in range(axis.size)]
        for i, side in enumerate(sides):
            if side != sides[0]:
                raise Straddle(axis, i)
    raise CannotCompile(f"a seam at {at} runs through a view that cannot be taken apart there.")


def reshape(index: Index, shape: Sequence[int], source: Sequence[int]) -> Index:
    """Where to read the source of a view of `shape`."""
    flat, stride = ZERO, 1
    for part, size in zip(reversed(index), reversed(shape), strict=True):
        flat = flat.plus(part * stride)
        stride *= size
    return unravel(flat, source)


def unravel(flat: Affine, shape: Sequence[int]) -> Index:
    """A flat index taken apart into one for each dimension of a contiguous tensor."""
    parts: list[Affine] = []
    for size in reversed(shape):
        inside, beyond = [], []
        for axis, stride in flat.terms:
            if stride < 0:
                raise CannotCompile("a reversed dimension is reshaped.")
            if stride % size == 0:
                beyond.append((axis, stride // size))
                continue
            if stride * axis.size > size:
                inner, left = divmod(size, stride)
                if left or inner == 0:
                    raise CannotCompile(f"a view takes a dimension of {axis.size} apart unevenly.")
                raise Factor(axis, inner)
            inside.append((axis, stride))
        here = Affine(flat.offset % size, tuple(inside))
        if here.high >= size:
            cut(here, size)
        parts.append(here)
        flat = Affine(flat.offset // size, tuple(beyond))
    return tuple(reversed(parts))


def strided(index: Index, strides: Sequence[int], offset: int, source: Sequence[int]) -> Index:
    """Where to read the contiguous source of `as_strided`."""
    flat = Affine(offset)
    for part, stride in zip(index, strides, strict=True):
        flat = flat.plus(part * stride)
    return unravel(flat, source)


def broadcast(index: Index, source: Sequence[int]) -> Index:
    """Where to read a source that is broadcast to the shape that `index` is for."""
    last = index[len(index) - len(source) :]
    return tuple(ZERO if size == 1 else part for part, size in zip(last, source, strict=True))
