"""Where numbers lie on a CPU, and which products of them `lanes.hpp` is fast at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from nnarena.kernels.compiler.index import Axis, Index
from nnarena.kernels.compiler.plan import LANES
from nnarena.kernels.compiler.tiles import Source


@dataclass(frozen=True)
class Spot:
    """Where numbers lie: a pointer, how far behind it, and how far apart along each axis."""

    pointer: str
    offset: int
    strides: dict[Axis, int]
    lanes: bool

    def numbers(self, axes: Sequence[Axis]) -> int:
        """How many there are along these axes, in all lanes."""
        return math.prod(axis.size for axis in axes) * (LANES if self.lanes else 1)

    def at(self, env: dict[Axis, str]) -> str:
        terms = [str(self.offset)] * bool(self.offset)
        terms += [
            name if step == 1 else f"{name} * {step}" for axis, step in self.strides.items() if (name := env[axis])
        ]
        if not terms:
            return self.pointer
        place = " + ".join(terms)
        return f"{self.pointer} + ({place}) * LANES" if self.lanes else f"{self.pointer} + {place}"


def spot_in(pointer: str, source: Source, index: Index, lanes: bool = True) -> Spot:
    offset, strides, step = source.start, {}, math.prod(source.shape)
    for part, size in zip(index, source.shape, strict=True):
        step //= size
        offset += part.offset * step
        for axis, stride in part.terms:
            strides[axis] = strides.get(axis, 0) + stride * step
    return Spot(pointer, offset, strides, lanes)


def row_major(axes: Sequence[Axis]) -> dict[Axis, int]:
    strides, step = {}, 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= axis.size
    return dict(reversed(strides.items()))


@dataclass(frozen=True)
class Loop:
    """Axes that are one loop, and how far apart numbers are along it in each of several places."""

    size: int
    strides: tuple[int, ...]
    axes: tuple[Axis, ...] = ()


ONCE = Loop(1, (0, 0))


@dataclass(frozen=True)
class Call:
    """A call of a function that multiplies.

    around   axes that are loops around it
    zeros    whether zeros come first, because it adds to what is there
    """

    function: str
    sizes: Sequence[int | str]
    spots: tuple[Spot, Spot, Spot]
    inside: tuple[Axis, ...]
    around: list[Axis] = field(default_factory=list)
    zeros: bool = False

    def text(self, env: dict[Axis, str]) -> str:
        places = ", ".join(spot.at(env | dict.fromkeys(self.inside, "0")) for spot in self.spots)
        return f"{self.function}<{', '.join(map(str, self.sizes))}>({places});"


def product_call(
    axes: Sequence[Axis], inner: Sequence[Axis], out: Spot, left: Spot, right: Spot, adds: bool, across: bool
) -> Call | None:
    """Σ over `inner`, and `across` the samples, of left · right, for all `axes`; None if no function is fast at it."""
    high = widest([axis for axis in axes if axis not in right.strides], out, left)
    wide = widest([axis for axis in axes if axis not in left.strides], out, right)
    deep = widest(inner, left, right) or ONCE
    if across:
        found = _outer(out, left, right, high, wide)
        deep = ONCE
    elif left.lanes and right.lanes:
        found = _own_product(out, left, right, high, wide, deep)
    elif left.lanes:
        found = _product(out, right, left, wide, Loop(deep.size, deep.strides[::-1]))
    elif right.lanes:
        found = _product(out, left, right, high, deep)
    else:
        found = None
    if found is None:
        return None
    function, sizes, spots, loops = found
    inside = {axis for loop in (*loops, deep) for axis in loop.axes}
    more = across or len(deep.axes) < len(inner)  # what it finds is added to what is there
    around = [axis for axis in (*axes, *inner) if axis not in inside]
    return Call(
        function,
        sizes if across else [*sizes, "true" if adds or more else "false"],
        spots,
        tuple(inside),
        around,
        zeros=more and not adds,
    )


Found = tuple[str, Sequence[int | str], tuple[Spot, Spot, Spot], list[Loop]]


def _product(out: Spot, weight: Spot, x: Spot, high: Loop | None, deep: Loop) -> Found | None:
    """Of weights with what a sample has."""
    if high is None:
        return None
    return "product", [high.size, deep.size, *high.strides, *deep.strides], (out, weight, x), [high]


def _own_product(out: Spot, left: Spot, right: Spot, high: Loop | None, wide: Loop | None, deep: Loop) -> Found | None:
    """Of two that a sample has."""
    if high is None and wide is None:
        return None
    if high is None:
        left, right, high, wide, deep = right, left, wide, None, Loop(deep.size, deep.strides[::-1], deep.axes)
    assert high is not None
    wide = wide or ONCE
    sizes = [high.size, wide.size, deep.size, high.strides[0], wide.strides[0]]
    sizes += [high.strides[1], deep.strides[0], wide.strides[1], deep.strides[1]]
    return "own_product", sizes, (out, left, right), [high, wide]


def _outer(out: Spot, left: Spot, right: Spot, high: Loop | None, wide: Loop | None) -> Found | None:
    """Of every number with every other, summed over samples: the gradient of a weight."""
    if high is None or wide is None:
        return None
    if wide.strides[0] != 1:
        left, right, high, wide = right, left, wide, high
    if wide.strides[0] != 1:
        return None
    sizes = [high.size, wide.size, *high.strides, wide.strides[1]]
    return "outer", sizes, (out, left, right), [high, wide]


def widest(axes: Sequence[Axis], *spots: Spot) -> Loop | None:
    """As many of these axes as are one loop in all places, or the longest of them; None if there are none."""
    if not axes:
        return None

    def steps(axis: Axis) -> list[int]:
        return [spot.strides.get(axis, 0) for spot in spots]

    order = sorted(axes, key=lambda axis: [-abs(step) for step in steps(axis)])
    chained = all(
        [step * inner.size for step in steps(inner)] == steps(outer) for outer, inner in itertools.pairwise(order)
    )
    if chained:
        return Loop(math.prod(axis.size for axis in order), tuple(steps(order[-1])), tuple(order))
    longest = max(axes, key=lambda axis: axis.size)
    return Loop(longest.size, tuple(steps(longest)), (longest,))
