"""Tiles: the small program that a kernel runs at every step.

A tile is a block of numbers with named axes, BATCH first where it has one. It is made by one operation from other
tiles, and it is made once: whoever wants the same numbers again along other axes gets a `Ref` that renames them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from nnarena.kernels.compiler.index import Affine, Axis, Index

Kind = Literal["float", "bool", "int"]


@dataclass(frozen=True, eq=False)
class Source:
    """Numbers that lie in memory: a constant, an input, a saved value, or a gradient that comes in.

    shape   of one sample at one time
    start   of it in a memory where it lies beside others, and
    width   how many numbers they are together; alone, as many as it has
    rows    whether every sample has its own
    time    whether every step has its own; memory then has room for T + `extra` steps, and `shift` places later than t
            is where it is read
    every   how many steps share one, or the name of the kernel's argument that says so
    last    whether it is that of the last of these steps only, and zero for the others
    dead    whether it is zero for rows without a sample, which else hold the last sample once more
    """

    name: str
    shape: tuple[int, ...]
    rows: bool
    time: bool
    shift: int = 0
    extra: int = 0
    every: int | str = 1
    last: bool = False
    kind: Kind = "float"
    dead: bool = False
    start: int = 0
    width: int = 0

    @property
    def numbers(self) -> int:
        """From one sample, or one time, to the next."""
        return self.width or math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Carry:
    """Numbers that a program holds from step to step, in pieces.

    part   of the state which this is, or whose gradient
    cuts   the seams of each dimension
    pads   what the pieces between them are padded to
    """

    name: str
    part: int
    shape: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]
    pads: tuple[tuple[int, ...], ...]

    def pieces(self) -> list[tuple[tuple[int, ...], Index, tuple[Axis, ...]]]:
        """The number, index and axes of every piece."""
        pieces: list[tuple[tuple[int, ...], Index, tuple[Axis, ...]]] = [((), (), ())]
        for cuts, pads in zip(self.cuts, self.pads, strict=True):
            longer = []
            for number, index, axes in pieces:
                for place, (begin, end) in enumerate(itertools.pairwise(cuts)):
                    axis = Axis(end - begin, pads[place])
                    mine = (axis,) if axis.size > 1 else ()
                    part = Affine(begin, tuple((axis, 1) for axis in mine))
                    longer.append(((*number, place), (*index, part), (*axes, *mine)))
            pieces = longer
        return pieces


@dataclass(eq=False)
class Tile:
    """op      load, carry, pick, map, sum, max, dot, dots (one for each sample) or equals
    args    Refs and plain numbers; of a dot that is added to another one, this one last; of a pick, all that was laid
    axes    as they were called when the tile was made
    detail  what the operation needs to know besides
    steady  the same at every step
    clean   axes beyond whose size the padding is known to hold zeros
    """

    op: str
    args: tuple[Any, ...]
    axes: tuple[Axis, ...]
    detail: Any = None
    steady: bool = False
    clean: frozenset[Axis] = frozenset()
    kind: Kind = "float"
    name: str = field(default="", compare=False)
    open: bool = False  # a dot to which another one will be added


@dataclass(frozen=True)
class Ref:
    """A tile whose axes are called by other names."""

    tile: Tile
    axes: tuple[Axis, ...]

    def renamed(self, names: dict[Axis, Axis]) -> Ref:
        return Ref(self.tile, tuple(names.get(axis, axis) for axis in self.axes))

    @property
    def clean(self) -> frozenset[Axis]:
        return frozenset(new for old, new in zip(self.tile.axes, self.axes, strict=True) if old in self.tile.clean)


Value = Ref | float | bool


@dataclass(frozen=True)
class Rule:
    """How an operation on single numbers is written in Triton, and carried out on numbers known beforehand."""

    text: str
    fold: Callable[..., Any]
    keeps_zero: bool = False  # zeros in, zero out
    kind: Kind = "float"


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


MAPS = {
    "add": Rule("{0} + {1}", lambda a, b: a + b, True),
    "sub": Rule("{0} - {1}", lambda a, b: a - b, True),
    "mul": Rule("{0} * {1}", lambda a, b: a * b, True),
    "div": Rule("{0} * inverse({1}, precision)", lambda a, b: a / b),
    "neg": Rule("-{0}", lambda a: -a, True),
    "agreed": Rule("agreed({0})", lambda a: a, True),
    "abs": Rule("tl.abs({0})", abs, True),
    "exp": Rule("exp({0}, precision)", math.exp),
    "log": Rule("tl.log({0})", math.log),
    "log1p": Rule("tl.log(1.0 + {0})", math.log1p, True),
    "expm1": Rule("exp({0}, precision) - 1.0", math.expm1, True),
    "sqrt": Rule("tl.sqrt({0})", math.sqrt, True),
    "rsqrt": Rule("inverse(tl.sqrt({0}), precision)", lambda a: 1 / math.sqrt(a)),
    "reciprocal": Rule("inverse({0}, precision)", lambda a: 1 / a),
    "sin": Rule("tl.sin({0})", math.sin, True),
    "cos": Rule("tl.cos({0})", math.cos),
    "erf": Rule("tl.erf({0})", math.erf, True),
    "tanh": Rule("tanh({0}, precision)", math.tanh, True),
    "sigmoid": Rule("sigmoid({0}, precision)", _sigmoid),
    "relu": Rule("tl.maximum({0}, 0.0)", lambda a: max(a, 0.0), True),
    "maximum": Rule("tl.maximum({0}, {1})", max, True),
    "minimum": Rule("tl.minimum({0}, {1})", min, True),
    "sign": Rule("tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))", lambda a: (a > 0) - (a < 0), True),
    "where": Rule("tl.where({0}, {1}, {2})", lambda c, a, b: a if c else b),
    "gt": Rule("{0} > {1}", lambda a, b: a > b, kind="bool"),
    "ge": Rule("{0} >= {1}", lambda a, b: a >= b, kind="bool"),
    "lt": Rule("{0} < {1}", lambda a, b: a < b, kind="bool"),
    "le": Rule("{0} <= {1}", lambda a, b: a <= b, kind="bool"),
    "eq": Rule("{0} == {1}", lambda a, b: a == b, kind="bool"),
    "ne": Rule("{0} != {1}", lambda a, b: a != b, kind="bool"),
    "and": Rule("{0} & {1}", lambda a, b: a and b, kind="bool"),
    "or": Rule("{0} | {1}", lambda a, b: a or b, kind="bool"),
    "not": Rule("~{0}", lambda a: not a, kind="bool"),
}


def factors_of(tile: Tile) -> tuple[Ref, Ref] | None:
    """What is multiplied in a sum of products; None if it is none, or the same at every step."""
    if tile.op != "sum" or tile.steady:
        return None
    (inside,) = tile.args
    if inside.tile.op != "map" or inside.tile.detail != "mul" or not all(isinstance(a, Ref) for a in inside.tile.args):
        return None
    names = dict(zip(inside.tile.axes, inside.axes, strict=True))
    left, right = (arg.renamed(names) for arg in inside.tile.args)
    return left, right


def padded(axes: tuple[Axis, ...]) -> int:
    return math.prod(axis.pad for axis in axes)


def power_of_two(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (size - 1).bit_length()
