"""From a graph to tiles, by reading: every node is read at an index, and what it is there is made of its arguments.

Nothing is computed that nobody reads, and nothing is computed where nobody reads it. A slice of a product of matrices
becomes a product with a slice of the weights; a product with a concatenation becomes a sum of products; a gradient
that was padded with zeros is read where it is not zero. These are not rules of their own, they follow from reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from torch.fx import Node

from nnarena.kernels.compiler.graph import name_of, shape_of, unshaped
from nnarena.kernels.compiler.index import ZERO, Affine, Axis, Factor, Index, Repad, Straddle, axes_of, broadcast, cut
from nnarena.kernels.compiler.plan import NARROW
from nnarena.kernels.compiler.program import Program
from nnarena.kernels.compiler.rules import RULES
from nnarena.kernels.compiler.tiles import Carry, Ref, Source, Tile, Value
from nnarena.kernels.compiler.trace import CannotCompile
from nnarena.kernels.compiler.views import VIEWS

T = TypeVar("T")
SINGLES = 8  # so many numbers at most are carried one by one, where they are read in another order


class NeedCut(Exception):
    """What is carried from step to step is read in parts: it must be carried in parts, cut before element `at`."""

    def __init__(self, carry: Carry, dim: int, at: int) -> None:
        self.carry, self.dim, self.at = carry, dim, at


class Reader:
    """Reads a graph into a program.

    leaves  nodes that are not computed: they lie in memory or are carried
    agreed  nodes of which all threads must have the same numbers, bit by bit
    aside   vectors that are computed as a whole, laid aside in memory, and read from there in whatever parts
    sign    where it lies whether a node is above zero, if it does
    """

    def __init__(
        self,
        program: Program,
        leaves: dict[Node, Source | Carry],
        chop: Callable[[int], list[int]],
        agreed: Container[Node] = (),
        aside: Mapping[Node, Source] = MappingProxyType({}),
        sign: Callable[[Node], Source | None] = lambda node: None,
    ) -> None:
        self.program, self.leaves, self.chop, self.agreed, self.aside = program, leaves, chop, agreed, dict(aside)
        self.sign = sign
        self.alike = program.batch.size > 1  # whether pieces of a dimension are padded alike
        self.known: dict[tuple[Any, ...], tuple[Value, tuple[Axis, ...]]] = {}
        self.places: dict[Node, list[tuple[Index, Value]]] = {}  # where a node was read
        self.laid: dict[Node, list[tuple[Index, Any]]] = {}  # what was laid aside, in pieces

    def read(self, node: Node, index: Index) -> Value:
        """The numbers of `node` at `index`, made once for every index that differs by the names of its axes only."""
        key, axes = _pattern(node, index)
        if key in self.known:
            value, names = self.known[key]
            return value.renamed(dict(zip(names, axes, strict=True))) if isinstance(value, Ref) else value
        value = self._make(node, index)
        self.known[key] = value, axes
        self.places.setdefault(node, []).append((index, value))
        return value

    def _make(self, node: Node, index: Index) -> Value:
        leaf = self.leaves.get(node)
        if isinstance(leaf, Source):
            # the batch dimension of what a sample has, which is one, is not in the shape of a source
            return self.program.load(leaf, index[len(index) - len(leaf.shape) :])
        if isinstance(leaf, Carry):
            return self._carried(leaf, index[1:])
        if node in self.aside:
            return self._picked(node, index[1:])
        return self._computed(node, index)

    def _computed(self, node: Node, index: Index) -> Value:
        name = name_of(node)
        if name in VIEWS:
            seen = VIEWS[name](node, index)
            return self.read(*seen) if isinstance(seen, tuple) else seen
        if name in RULES:
            value = RULES[name](self, node, index)
            return self.program.map("agreed", value) if node in self.agreed else value
        raise CannotCompile(f"there is no rule for {name}.")

    def _picked(self, node: Node, index: Index) -> Value:
        """A part of what is laid aside, once all of it is there; what is carried was laid there in the step before."""
        if node not in self.laid:
            pieces = [] if isinstance(self.leaves.get(unshaped(node)), Carry) else self._pieces(node)
            if not all(isinstance(value, Ref) and _is_computed(value.tile) for _, value in pieces):
                del self.aside[node]  # what was not computed is at hand in any parts
                return self._computed(node, index)
            self.laid[node] = pieces
        return self.program.pick(self.aside[node], index, tuple(value for _, value in self.laid[node]))

    def _pieces(self, node: Node) -> list[tuple[Index, Any]]:
        """All of a vector, in the pieces in which it is computed."""
        least = NARROW if self.alike else 1
        return self.over(shape_of(node)[-1], lambda part, _: ((part,), self._computed(node, (ZERO, part))), least)

    def argument(self, arg: Any, index: Index) -> Any:
        """An argument of an operation on single numbers, broadcast to the index of its result."""
        return self.read(arg, broadcast(index, shape_of(arg))) if isinstance(arg, Node) else arg

    def above_zero(self, node: Node, index: Index) -> Value:
        """Whether the numbers of a node are."""
        known = self.sign(node)
        value = self.read(node, index) if known is None else self.program.load(known, index[-len(known.shape) :])
        return self.program.map("gt", value, 0.0)

    def _carried(self, carry: Carry, index: Index) -> Value:
        """The piece of a carry that is read. What is read in parts must be carried in parts."""
        piece, axes = [], []
        for dim, (part, cuts) in enumerate(zip(index, carry.cuts, strict=True)):
            for at in cuts[1:-1]:
                cut(part, at)
            number = next(place for place, at in enumerate(cuts[1:]) if part.high < at)
            begin, end = cuts[number], cuts[number + 1]
            if part.low > begin:
                raise NeedCut(carry, dim, part.low)
            if part.high < end - 1:
                raise NeedCut(carry, dim, part.high + 1)
            if len(part.terms) > 1 or (part.terms and part.terms[0][1] != 1):
                if end - begin > SINGLES:
                    raise CannotCompile("what it carries from step to step is read in another order.")
                raise NeedCut(carry, dim, begin + 1)
            for axis, _ in part.terms:
                if axis.pad != carry.pads[dim][number]:
                    raise Repad(axis, carry.pads[dim][number])
            piece.append(number)
            axes.extend(axis for axis, _ in part.terms)
        return self.program.carry(carry, tuple(piece), tuple(axes))

    def over(self, size: int, body: Callable[[Affine, tuple[Axis, ...]], T], pad: int = 1) -> list[T]:
        """`body` for every piece of a dimension, cut where what it reads has seams, and where it would be too wide.

        If it need not be cut, its axis is padded to `pad` at least.
        """
        results: list[T] = []
        for piece, result in _over([Piece(0, ((size, 1),), pad)], body):
            smaller = self._chopped(piece)
            results += [result] if len(smaller) == 1 else [part for _, part in _over(smaller, body)]
        return results

    def takes_apart(self, size: int) -> bool:
        """Whether a dimension of this size is read number by number."""
        return len(self.chop(size)) > size

    def _chopped(self, piece: Piece) -> list[Piece]:
        """A piece in parts that are not too wide; of one with several dimensions, the small ones are taken apart."""
        if len(piece.parts) == 1:
            ((size, stride),) = piece.parts
            bounds = self.chop(size)
            return [
                Piece(piece.offset + begin * stride, ((end - begin, stride),), pad=bounds[1] if self.alike else 1)
                for begin, end in itertools.pairwise(bounds)
            ]
        singles = [(size, stride) for size, stride in piece.parts if self.takes_apart(size)]
        offsets = [piece.offset]
        for size, stride in singles:
            offsets = [offset + stride * number for offset in offsets for number in range(size)]
        return [Piece(offset, tuple(part for part in piece.parts if part not in singles)) for offset in offsets]

    def total(self, op: str, parts: list[Value]) -> Value:
        result = parts[0]
        for part in parts[1:]:
            result = self.program.map(op, result, part)
        return result

    def reduce(self, op: Any, node: Node, dims: list[int], index: Index) -> Value:
        """The sum or maximum of `node` over `dims`; `index` is that of the dimensions that stay."""
        shape = shape_of(node)
        if not dims:
            return self.read(node, index)
        first, others = dims[0], dims[1:]

        def body(part: Affine, axes: tuple[Axis, ...]) -> Value:
            inside = (*index[:first], part, *index[first:])
            return self.program.reduce(op, self.reduce(op, node, others, inside), axes)

        return self.total("add" if op == "sum" else "maximum", self.over(shape[first], body))

    def contract(self, size: int, left: Callable[[Affine], Value], right: Callable[[Affine], Value]) -> Value:
        """Σ_k left(k) · right(k)."""

        def body(k: Affine, axes: tuple[Axis, ...]) -> Value:
            return self.program.product(left(k), right(k), axes)

        return self.program.sum_of_products(self.over(size, body))


def _is_computed(tile: Tile) -> bool:
    """Whether a tile is computed at every step."""
    return not tile.steady and tile.op not in ("load", "carry", "pick")


class Piece(NamedTuple):
    """A part of a dimension: every offset + Σ stride · i with i below its size."""

    offset: int
    parts: tuple[tuple[int, int], ...]  # sizes and strides
    pad: int = 1

    def cut(self, place: int, at: int) -> list[Piece]:
        size, stride = self.parts[place]
        before, after = self.parts[:place], self.parts[place + 1 :]
        return [
            Piece(self.offset, (*before, (at, stride), *after)),
            Piece(self.offset + at * stride, (*before, (size - at, stride), *after)),
        ]

    def factored(self, place: int, inner: int) -> Piece:
        size, stride = self.parts[place]
        if size % inner:
            raise CannotCompile(f"a view takes a dimension of {size} apart unevenly.")
        split = ((size // inner, stride * inner), (inner, stride))
        return Piece(self.offset, (*self.parts[:place], *split, *self.parts[place + 1 :]))


def _over(todo: list[Piece], body: Callable[[Affine, tuple[Axis, ...]], T]) -> list[tuple[Piece, T]]:
    done: list[tuple[Piece, T]] = []
    while todo:
        piece = todo.pop(todo.index(min(todo, key=lambda piece: piece.offset)))
        axes = [Axis(size, piece.pad) for size, _ in piece.parts]
        terms = [(axis, stride) for axis, (size, stride) in zip(axes, piece.parts, strict=True) if size > 1]
        try:
            done.append((piece, body(Affine(piece.offset, tuple(terms)), tuple(axis for axis, _ in terms))))
        except Straddle as seam:
            if seam.axis not in axes:
                raise
            todo[:0] = piece.cut(axes.index(seam.axis), seam.at)
        except Factor as factor:
            if factor.axis not in axes:
                raise
            todo.insert(0, piece.factored(axes.index(factor.axis), factor.inner))
        except Repad as other:
            if other.axis not in axes or len(axes) > 1:
                raise
            todo.insert(0, piece._replace(pad=other.pad))
    return done


def _pattern(node: Node, index: Index) -> tuple[tuple[Any, ...], tuple[Axis, ...]]:
    """What two indices have in common that differ by the names of their axes, and these axes in order."""
    axes = axes_of(index)
    number = {axis: place for place, axis in enumerate(axes)}
    parts = tuple((part.offset, tuple((number[axis], stride) for axis, stride in part.terms)) for part in index)
    return (node, parts, tuple((axis.size, axis.pad) for axis in axes)), axes
