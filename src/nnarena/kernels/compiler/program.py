"""What makes tiles: each once, in the order in which they can be computed, with what is known beforehand worked out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from nnarena.kernels.compiler.index import Axis, Index, Straddle, axes_of
from nnarena.kernels.compiler.tiles import MAPS, Carry, Kind, Ref, Source, Tile, Value, factors_of, padded


class Program:
    """Tiles in the order in which they can be computed, and what makes new ones.

    `inner_first`: whether what is multiplied and summed has the inner axes in front. The threads of a warp run along
    the last axis: each of them sums on its own, and several warps add up what theirs have found. Else the inner axes
    come last, and the threads of a warp pass all of it to each other.
    """

    def __init__(
        self,
        rows: int,
        inner_first: bool = False,
        units: bool = True,
        afresh: bool = False,
        upright: bool = False,
        each: bool = False,
    ) -> None:
        self.inner_first = inner_first
        self.afresh = afresh  # whether single numbers are computed again sooner than kept
        self.units = units  # whether there are matrix units; without them, a product is a sum of products
        self.upright = upright  # whether a sample's rows are those of its products, and every warp computes all of them
        self.each = each  # whether a product of a block's samples is one of each, to be added up in the end
        self.tiles: list[Tile] = []
        self.batch = Axis(rows)  # one row a sample; where there is only one, no tile has the axis
        self.order: dict[Axis, int] = {self.batch: -1}
        self.turned: dict[tuple[Tile, tuple[Axis, ...]], Tile] = {}
        self.known: dict[tuple[Any, ...], tuple[Tile, tuple[Axis, ...]]] = {}

    def _make(self, tile: Tile) -> Ref:
        self.tiles.append(tile)
        return Ref(tile, tile.axes)

    def _once(self, tile: Tile) -> Ref:
        """A tile, or the one that is there already and has the same numbers, whatever its axes are called."""
        if self.afresh and tile.op == "map":
            return self._make(tile)
        key, axes = _pattern(tile)
        if key not in self.known:
            self.known[key] = tile, axes
            return self._make(tile)
        same, names = self.known[key]
        return Ref(same, same.axes).renamed(dict(zip(names, axes, strict=True)))

    def _sorted(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Each axis once, the oldest first: the same text comes out every time, whatever numbers objects have."""
        unique = dict.fromkeys(axes)
        for axis in unique:
            self.order.setdefault(axis, len(self.order))
        return tuple(sorted(unique, key=self.order.__getitem__))

    @property
    def batch_axes(self) -> tuple[Axis, ...]:
        return (self.batch,) if self.batch.size > 1 else ()

    def load(self, source: Source, index: Index) -> Ref:
        found = axes_of(index)
        axes = (*(self.batch_axes if source.rows else ()), *found)
        for axis in found:
            self.order.setdefault(axis, len(self.order))
        return self._make(Tile("load", (), axes, (source, index), not source.time, frozenset(found), source.kind))

    def carry(self, carry: Carry, piece: tuple[int, ...], axes: tuple[Axis, ...]) -> Ref:
        for axis in axes:
            self.order.setdefault(axis, len(self.order))
        return self._make(Tile("carry", (), (*self.batch_axes, *axes), (carry, piece)))

    def pick(self, source: Source, index: Index, laid: tuple[Ref, ...]) -> Ref:
        """What a program reads of numbers that it has laid aside in this step, or in the one before."""
        found = axes_of(index)
        for axis in found:
            self.order.setdefault(axis, len(self.order))
        return self._make(Tile("pick", laid, (*self.batch_axes, *found), (source, index), clean=frozenset(found)))

    def map(self, name: str, *args: Value, inner: tuple[Axis, ...] = ()) -> Value:
        """An operation on single numbers, with what is known beforehand worked out; `inner` are about to be summed."""
        rule = MAPS[name]
        if not any(isinstance(arg, Ref) for arg in args):
            return rule.fold(*args)
        if name == "div" and isinstance(args[1], (int, float)) and args[1]:
            return self.map("mul", args[0], 1 / args[1], inner=inner)
        known = _simplify(name, args)
        if known is None and self.batch.size == 1 and not inner:
            known = self._joined(name, args)
        if known is not None:
            return known
        refs = [arg for arg in args if isinstance(arg, Ref)]
        axes = self._sorted(axis for ref in refs for axis in ref.axes)
        outer, inner = tuple(axis for axis in axes if axis not in inner), tuple(axis for axis in inner if axis in axes)
        axes = (*inner, *outer) if self.inner_first else (*outer, *inner)
        zero_constants = all(isinstance(arg, Ref) or arg == 0 for arg in args)
        clean: frozenset[Axis] = frozenset()
        if rule.keeps_zero and (zero_constants or name == "mul"):
            clean = frozenset(axis for axis in axes if all(axis in ref.clean for ref in refs))
        kind: Kind = rule.kind
        return self._once(Tile("map", args, axes, name, all(ref.tile.steady for ref in refs), clean, kind))

    def _joined(self, name: str, args: tuple[Value, ...]) -> Value | None:
        """Two products that are added up are summed once: Σ a + Σ b = Σ (a + b), and −Σ a x = Σ (−a) x.

        With one sample a program, a sum is an exchange between threads, which takes longer than what is summed.
        """
        if name == "mul" and isinstance(args[1], (int, float)) and (found := _product(args[0])):
            (left, right), inner = found
            return self.reduce("sum", self.map("mul", self.map("mul", left, args[1]), right, inner=inner), inner)
        if name != "add":
            return None
        for one, other in (args, args[::-1]):
            if not isinstance(one, Ref) or not isinstance(other, Ref) or one.tile.steady:
                continue
            if (both := self._one_sum(one, other)) is not None:
                return both
            if one.tile.op == "map" and one.tile.detail == "add" and all(isinstance(arg, Ref) for arg in one.tile.args):
                names = dict(zip(one.tile.axes, one.axes, strict=True))
                first, second = (arg.renamed(names) for arg in one.tile.args)
                if (both := self._one_sum(second, other)) is not None:
                    return self.map("add", first, both)
        return None

    def _one_sum(self, one: Ref, other: Ref) -> Value | None:
        first, second = _product(one), _product(other)
        if first is None or second is None or one.axes != other.axes:
            return None
        (a, b), inner = first
        (c, d), others = second
        if [(axis.size, axis.pad) for axis in inner] != [(axis.size, axis.pad) for axis in others]:
            return None
        names = dict(zip(others, inner, strict=True))
        terms = [self.map("mul", a, b, inner=inner), self.map("mul", c.renamed(names), d.renamed(names), inner=inner)]
        return self.reduce("sum", self.map("add", *terms, inner=inner), inner)

    def reduce(self, op: Literal["sum", "max"], value: Value, axes: tuple[Axis, ...]) -> Value:
        count = math.prod(axis.size for axis in axes)
        if not isinstance(value, Ref):
            return value * count if op == "sum" else value
        missing = [axis for axis in axes if axis not in value.axes]
        if op == "sum" and missing:
            value = self.map("mul", value, float(math.prod(axis.size for axis in missing)))
            assert isinstance(value, Ref)
        gone = tuple(axis for axis in axes if axis in value.axes)
        if not gone:
            return value
        left = tuple(axis for axis in value.axes if axis not in gone)
        if self.each:
            value = self._turned(value, (*left, *gone))
        clean = frozenset(axis for axis in left if axis in value.clean) if op == "sum" else frozenset()
        return self._once(Tile(op, (value,), left, gone, value.tile.steady, clean))

    def product(self, left: Value, right: Value, inner: tuple[Axis, ...]) -> Value:
        """Σ over the inner axes of left · right, on the matrix units where the sizes allow."""
        if self.units and isinstance(left, Ref) and isinstance(right, Ref):
            rows = tuple(axis for axis in left.axes if axis not in inner)
            columns = tuple(axis for axis in right.axes if axis not in inner)
            whole = all(axis in left.axes and axis in right.axes for axis in inner)
            for axis in rows:
                if axis in columns and axis is not self.batch and whole and self._pays(axis, rows, inner, columns):
                    raise Straddle(axis, 1)  # one product for each of what both sides share, such as heads
            if whole and self.batch in rows and self.batch in columns:
                batched = self._product_of_each(left, right, inner)
                if batched is not None:
                    return batched
            if whole and not set(rows) & set(columns):
                groups = (rows, inner, columns)
                if all(padded(group) >= 16 for group in groups):
                    # The samples stand in the rows. Where there is one sample only, its rows stand in the columns: what
                    # a product needs of the one before it is then transposed, and Triton takes the two for independent;
                    # else it would let every warp compute all rows.
                    if self.batch in columns or (self.batch.size == 1 and not self.upright):
                        left, right, (rows, inner, columns) = right, left, (columns, inner, rows)
                        groups = (rows, inner, columns)
                    # what a warp has of a product is what it needs of one whose last axis is summed
                    lying = (*columns, *inner) if self.upright and not right.tile.steady else (*inner, *columns)
                    left, right = self._turned(left, (*rows, *inner)), self._turned(right, lying)
                    steady = left.tile.steady and right.tile.steady
                    clean = frozenset(axis for axis in rows if axis in left.clean) | frozenset(
                        axis for axis in columns if axis in right.clean
                    )
                    return self._make(Tile("dot", (left, right), (*rows, *columns), groups, steady, clean))
        if self.units:
            left, right = self._lying(left, inner), self._lying(right, inner)
        return self.reduce("sum", self.map("mul", left, right, inner=inner), inner)

    def sum_of_products(self, terms: list[Value]) -> Value:
        """What products over the pieces of a dimension add up to; the matrix units add while they multiply."""
        result = terms[0]
        for term in terms[1:]:
            if isinstance(result, Ref) and isinstance(term, Ref) and _continues(term, result):
                term.tile.args, term.tile.clean = (*term.tile.args, result), term.tile.clean & result.tile.clean
                result.tile.open, result = True, term
            else:
                result = self.map("add", result, term)
        return result

    def _pays(self, axis: Axis, *groups: tuple[Axis, ...]) -> bool:
        """Whether the matrix units might do a product for each of what both sides share."""
        if self.batch.size > 1:
            return padded(groups[1]) >= 16
        return all(padded(tuple(other for other in group if other is not axis)) >= 16 for group in groups)

    def _product_of_each(self, left: Ref, right: Ref, inner: tuple[Axis, ...]) -> Ref | None:
        """A product for every sample of a block, where both sides are its own and large enough for the matrix units."""
        rows = tuple(axis for axis in left.axes if axis not in (*inner, self.batch))
        columns = tuple(axis for axis in right.axes if axis not in (*inner, self.batch))
        if set(rows) & set(columns) or any(padded(group) < 16 for group in (rows, inner, columns)):
            return None
        # The features of a sample, more than it has rows, lie side by side; below each other, where rows are
        # summed next.
        if self.each or padded(rows) > padded(columns):
            left, right, rows, columns = right, left, columns, rows
        if self.each:
            left = self._turned(left, (self.batch, *rows, *inner))
            right = self._turned(right, (self.batch, *columns, *inner))
        clean = frozenset(axis for axis in rows if axis in left.clean) | frozenset(
            axis for axis in columns if axis in right.clean
        )
        axes = (self.batch, *rows, *columns)
        return self._make(Tile("dots", (left, right), axes, (rows, inner, columns), False, clean))

    def _lying(self, value: Value, inner: tuple[Axis, ...]) -> Value:
        """A matrix of weights whose inner axis is not where it should be is read from a transposed copy."""
        if not isinstance(value, Ref) or value.tile.op != "load" or not value.tile.steady:
            return value
        source, index = value.tile.detail
        own = {value.tile.axes[value.axes.index(axis)] for axis in inner if axis in value.axes}
        places = [{axis for axis, _ in part.terms} for part in index]
        if len(places) != 2 or not all(places):
            return value
        summed, kept = (places[1], places[0]) if self.inner_first else places
        if not summed <= own or kept & own:
            return value
        turned = replace(source, name=f"{source.name}t", shape=tuple(reversed(source.shape)))
        axes = tuple(reversed(value.tile.axes)) if len(value.tile.axes) == 2 else None
        if axes is None:
            return value
        key = (value.tile, axes)
        if key not in self.turned:
            tile = value.tile
            detail = (turned, tuple(reversed(index)))
            self.turned[key] = self._make(Tile("load", (), axes, detail, True, tile.clean, tile.kind)).tile
        return Ref(self.turned[key], tuple(reversed(value.axes)))

    def _turned(self, ref: Ref, axes: tuple[Axis, ...]) -> Ref:
        """What lies in memory is read in the order in which it is wanted, instead of being turned round."""
        fixed = ref.tile.op != "load" or not (ref.tile.steady or self.upright or self.each)
        if fixed or ref.axes == axes or set(ref.axes) != set(axes):
            return ref
        own = tuple(ref.tile.axes[ref.axes.index(axis)] for axis in axes)
        key = (ref.tile, own)
        if key not in self.turned:
            tile = ref.tile
            self.turned[key] = self._make(Tile("load", (), own, tile.detail, tile.steady, tile.clean, tile.kind)).tile
        return Ref(self.turned[key], axes)

    def equals(self, value: Ref, axis: Axis, start: int) -> Ref:
        """One where an integer tile has the number start + axis, else zero."""
        axes = self._sorted([*value.axes, axis])
        return self._make(Tile("equals", (value,), axes, (axis, start), value.tile.steady))


def _pattern(tile: Tile) -> tuple[tuple[Any, ...], tuple[Axis, ...]]:
    """What two tiles have in common that differ by the names of their axes, and these axes in order."""
    axes = tuple(dict.fromkeys(axis for arg in tile.args if isinstance(arg, Ref) for axis in arg.axes))
    number = {axis: place for place, axis in enumerate(axes)}
    args = tuple(
        (arg.tile, *(number[axis] for axis in arg.axes)) if isinstance(arg, Ref) else (type(arg), arg)
        for arg in tile.args
    )
    detail = tile.detail if tile.op == "map" else tuple(number[axis] for axis in tile.detail)
    return (tile.op, detail, args, tuple(number[axis] for axis in tile.axes)), axes


def _continues(term: Ref, result: Ref) -> bool:
    """Whether two products of matrices, made for nothing but their sum, have the same rows and columns."""
    one, other = result.tile, term.tile
    if one.op != "dot" or other.op != "dot" or one.steady or other.steady:
        return False
    return result.axes == term.axes == one.axes == other.axes and one.detail[::2] == other.detail[::2]


def _product(value: Value) -> tuple[tuple[Ref, Ref], tuple[Axis, ...]] | None:
    """The factors and the inner axes of a sum of products, by the names that its axes have here."""
    if not isinstance(value, Ref) or (factors := factors_of(value.tile)) is None:
        return None
    names = dict(zip(value.tile.axes, value.axes, strict=True))
    left, right = (factor.renamed(names) for factor in factors)
    return (left, right), value.tile.detail


def _simplify(name: str, args: tuple[Value, ...]) -> Value | None:
    """What x + 0, 1 · x, 0 · x and their like are."""
    if name == "where" and not isinstance(args[0], Ref):
        return args[1] if args[0] else args[2]
    if len(args) != 2 or name not in ("add", "sub", "mul", "div"):
        return None
    a, b = args
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        if b == 0 and name in ("add", "sub"):
            return a
        if b == 1 and name in ("mul", "div"):
            return a
        if b == 0 and name == "mul":
            return 0.0
    if isinstance(a, (int, float)) and not isinstance(a, bool):
        if a == 0 and name == "add":
            return b
        if a == 1 and name == "mul":
            return b
        if a == 0 and name in ("mul", "div"):
            return 0.0
    return None
