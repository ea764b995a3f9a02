"""From a graph to tiles, by reading: every node is read at an index, and what it is there is made of its arguments.

Nothing is computed that nobody reads, and nothing is computed where nobody reads it. A slice of a product of matrices
becomes a product with a slice of the weights; a product with a concatenation becomes a sum of products; a gradient
that was padded with zeros is read where it is not zero. These are not rules of their own, they follow from reading.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch.fx import Node

from nnarena.kernels.index import (
    ZERO,
    Affine,
    Axis,
    Factor,
    Index,
    Repad,
    Straddle,
    broadcast,
    cut,
    reshape,
    strided,
)
from nnarena.kernels.tiles import Carry, Program, Ref, Source, Value
from nnarena.kernels.trace import CannotCompile

T = TypeVar("T")
View = Callable[[Node, Index], tuple[Node, Index] | float]
VIEWS: dict[str, View] = {}
RULES: dict[str, Callable[[Reader, Node, Index], Value]] = {}


class NeedCut(Exception):
    """What is carried from step to step is read in parts: it must be carried in parts, cut before element `at`."""

    def __init__(self, carry: Carry, dim: int, at: int) -> None:
        self.carry, self.dim, self.at = carry, dim, at


def view(*names: str) -> Callable[[View], View]:
    return lambda rule: [VIEWS.__setitem__(name, rule) for name in names] and rule  # type: ignore[return-value]


def rule(*names: str) -> Callable[[Any], Any]:
    return lambda make: [RULES.__setitem__(name, make) for name in names] and make


class Reader:
    """Reads a graph into a program. `leaves` are the nodes that are not computed: they lie in memory or are carried."""

    def __init__(self, program: Program, leaves: dict[Node, Source | Carry], chop: Callable[[int], list[int]]) -> None:
        self.program, self.leaves, self.chop = program, leaves, chop
        self.alike = program.batch.size > 1  # whether pieces of a dimension are padded alike
        self.known: dict[tuple[Any, ...], tuple[Value, tuple[Axis, ...]]] = {}
        self.places: dict[Node, list[tuple[Index, Value]]] = {}  # where a node was read

    def read(self, node: Node, index: Index) -> Value:
        """The numbers of `node` at `index`, made once for every index that differs by the names of its axes only."""
        key, axes = _shape_of(node, index)
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
            return self.program.load(leaf, index[1:] if leaf.rows else index)
        if isinstance(leaf, Carry):
            return self._carried(leaf, index[1:])
        name = name_of(node)
        if name in VIEWS:
            seen = VIEWS[name](node, index)
            return seen if isinstance(seen, float) else self.read(*seen)
        if name in RULES:
            return RULES[name](self, node, index)
        raise CannotCompile(f"there is no rule for {name}.")

    def argument(self, node: Node, place: int, index: Index) -> Value:
        """An argument of an operation on single numbers, broadcast to the index of its result."""
        arg = node.args[place]
        return self.read(arg, broadcast(index, shape_of(arg))) if isinstance(arg, Node) else arg  # type: ignore[return-value]

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
                if end - begin > 8:
                    raise CannotCompile("what it carries from step to step is read in another order.")
                raise NeedCut(carry, dim, begin + 1)
            for axis, _ in part.terms:
                if axis.pad != carry.pads[dim][number]:
                    raise Repad(axis, carry.pads[dim][number])
            piece.append(number)
            axes.extend(axis for axis, _ in part.terms)
        return self.program.carry(carry, tuple(piece), tuple(axes))

    def over(self, size: int, body: Callable[[Affine, tuple[Axis, ...]], T]) -> list[T]:
        """`body` for every piece of a dimension, cut where what it reads has seams, and where it would be too wide."""
        results: list[T] = []
        for piece, result in _over([Piece(0, ((size, 1),))], body):
            bounds = self.chop(piece.parts[0][0]) if len(piece.parts) == 1 else []
            if len(bounds) <= 2:
                results.append(result)
                continue
            stride = piece.parts[0][1]
            smaller = [
                Piece(piece.offset + begin * stride, ((end - begin, stride),), pad=bounds[1] if self.alike else 1)
                for begin, end in zip(bounds, bounds[1:], strict=False)
            ]
            results += [part for _, part in _over(smaller, body)]
        return results

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

        return self.total("add", self.over(size, body))


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
        piece = todo.pop(0)
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


def _shape_of(node: Node, index: Index) -> tuple[tuple[Any, ...], tuple[Axis, ...]]:
    """What two indices have in common that differ by the names of their axes, and these axes in order."""
    axes = tuple(dict.fromkeys(axis for part in index for axis, _ in part.terms))
    number = {axis: place for place, axis in enumerate(axes)}
    parts = tuple((part.offset, tuple((number[axis], stride) for axis, stride in part.terms)) for part in index)
    return (node, parts, tuple((axis.size, axis.pad) for axis in axes)), axes


def shape_of(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def name_of(node: Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    return node.target._schema.name.partition("::")[2].rstrip("_")  # type: ignore[union-attr]


# Views: where else to read.


@view("alias", "clone", "detach", "_to_copy", "lift_fresh_copy", "contiguous", "to", "convert_element_type")
def _same(node: Node, index: Index) -> tuple[Node, Index]:
    return node.args[0], index  # type: ignore[return-value]


@view("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze")
def _reshaped(node: Node, index: Index) -> tuple[Node, Index]:
    source: Any = node.args[0]
    return source, reshape(index, shape_of(node), shape_of(source))


@view("as_strided")
def _as_strided(node: Node, index: Index) -> tuple[Node, Index]:
    source: Any = node.args[0]
    value = source.meta["val"]
    if not value.is_contiguous():
        raise CannotCompile("a strided view of a tensor that is not contiguous.")
    offset = node.args[3] if len(node.args) > 3 and node.args[3] is not None else 0
    return source, strided(index, node.args[2], offset, shape_of(source))  # type: ignore[arg-type]


@view("expand")
def _expanded(node: Node, index: Index) -> tuple[Node, Index]:
    source: Any = node.args[0]
    return source, broadcast(index, shape_of(source))


@view("broadcast_in_dim")
def _broadcast(node: Node, index: Index) -> tuple[Node, Index]:
    source: Any = node.args[0]
    places: Any = node.args[2]
    return source, broadcast(tuple(index[place] for place in places), shape_of(source))


@view("t")
def _turned(node: Node, index: Index) -> tuple[Node, Index]:
    return node.args[0], tuple(reversed(index))  # type: ignore[return-value]


@view("transpose")
def _transposed(node: Node, index: Index) -> tuple[Node, Index]:
    source, one, other = node.args
    parts = list(index)
    parts[one], parts[other] = parts[other], parts[one]  # type: ignore[index]
    return source, tuple(parts)  # type: ignore[return-value]


@view("permute")
def _permuted(node: Node, index: Index) -> tuple[Node, Index]:
    source, dims = node.args
    parts = [ZERO] * len(index)
    for place, dim in enumerate(dims):  # type: ignore[arg-type]
        parts[dim] = index[place]  # type: ignore[index]
    return source, tuple(parts)  # type: ignore[return-value]


@view("slice")
def _sliced(node: Node, index: Index) -> tuple[Node, Index]:
    source: Any = node.args[0]
    dim, begin, _, step = _slice_of(node.args[1:], shape_of(source))
    return source, (*index[:dim], index[dim] * step + begin, *index[dim + 1 :])


@view("select")
def _selected(node: Node, index: Index) -> tuple[Node, Index]:
    source: Any = node.args[0]
    dim, place = node.args[1] % len(shape_of(source)), node.args[2]  # type: ignore[operator]
    return source, (*index[:dim], Affine(place % shape_of(source)[dim]), *index[dim:])  # type: ignore[operator]


@view("flip")
def _flipped(node: Node, index: Index) -> tuple[Node, Index]:
    source: Any = node.args[0]
    parts = list(index)
    for dim in node.args[1]:  # type: ignore[union-attr]
        parts[dim] = parts[dim] * -1 + (shape_of(source)[dim] - 1)  # type: ignore[index]
    return source, tuple(parts)


@view("getitem")
def _got(node: Node, index: Index) -> tuple[Node, Index]:
    several: Any = node.args[0]
    number: Any = node.args[1]
    source = several.args[0]
    dim = (several.args[2] if len(several.args) > 2 else 0) % len(shape_of(source))
    match name_of(several):
        case "split_with_sizes":
            begin = sum(several.args[1][:number])
        case "split":
            begin = several.args[1] * number
        case "unbind":
            dim = (several.args[1] if len(several.args) > 1 else 0) % len(shape_of(source))
            return source, (*index[:dim], Affine(number), *index[dim:])
        case other:
            raise CannotCompile(f"there is no rule for the parts of {other}.")
    return source, (*index[:dim], index[dim] + begin, *index[dim + 1 :])


@view("cat")
def _joined(node: Node, index: Index) -> tuple[Node, Index]:
    sources: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else 0
    dim, begin = dim % len(index), 0
    for source in sources:
        end = begin + shape_of(source)[dim]
        if index[dim].low < end:
            cut(index[dim], end)
            return source, (*index[:dim], index[dim] + -begin, *index[dim + 1 :])
        begin = end
    raise AssertionError("an index beyond the end")


@view("slice_scatter")
def _slice_replaced(node: Node, index: Index) -> tuple[Node, Index]:
    base: Any = node.args[0]
    new: Any = node.args[1]
    dim, begin, end, step = _slice_of(node.args[2:], shape_of(base))
    if step != 1:
        raise CannotCompile("there is no rule for slice_scatter with a step.")
    cut(index[dim], begin)
    cut(index[dim], end)
    if begin <= index[dim].low < end:
        return new, (*index[:dim], index[dim] + -begin, *index[dim + 1 :])
    return base, index


@view("select_scatter")
def _row_replaced(node: Node, index: Index) -> tuple[Node, Index]:
    base: Any = node.args[0]
    new: Any = node.args[1]
    dim, place = node.args[2] % len(index), node.args[3] % shape_of(base)[node.args[2]]  # type: ignore[operator,index]
    cut(index[dim], place)
    cut(index[dim], place + 1)
    if index[dim].low == place:
        return new, (*index[:dim], *index[dim + 1 :])
    return base, index


@view("constant_pad_nd")
def _padded(node: Node, index: Index) -> tuple[Node, Index] | float:
    source: Any = node.args[0]
    widths: Any = node.args[1]
    fill: Any = node.args[2] if len(node.args) > 2 else 0
    parts = list(index)
    for number in range(len(widths) // 2):
        dim = len(index) - 1 - number
        before, size = widths[2 * number], shape_of(source)[dim]
        cut(parts[dim], before)
        cut(parts[dim], before + size)
        if not before <= parts[dim].low < before + size:
            return float(fill)
        parts[dim] = parts[dim] + -before
    return source, tuple(parts)


@view("full", "full_like", "new_full")
def _filled(node: Node, index: Index) -> float:
    return float(node.args[2 if name_of(node) == "new_full" else 1])  # type: ignore[arg-type]


@view("scalar_tensor")
def _number(node: Node, index: Index) -> float:
    return float(node.args[0])  # type: ignore[arg-type]


@view("zeros", "zeros_like", "new_zeros", "empty_like")
def _zeros(node: Node, index: Index) -> float:
    return 0.0


@view("ones", "ones_like", "new_ones")
def _ones(node: Node, index: Index) -> float:
    return 1.0


def _slice_of(args: Any, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """dim, begin, end and step of a slice."""
    dim, begin, end, step = [*args, *(0, None, None, 1)[len(args) :]]
    dim %= len(shape)
    begin, end, _ = slice(begin, end).indices(shape[dim])
    return dim, begin, end, step


# Numbers: what is computed.

SAME = {"logical_and": "and", "bitwise_and": "and", "logical_or": "or", "bitwise_or": "or", "logical_not": "not"}
SAME |= {"bitwise_not": "not", "sgn": "sign", "clamp_min": "maximum", "clamp_max": "minimum"}


@rule(
    *[
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "abs",
        "exp",
        "log",
        "log1p",
        "expm1",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sin",
        "cos",
        "erf",
        "tanh",
        "sigmoid",
        "relu",
        "maximum",
    ],
    *["minimum", "sign", "where", "gt", "ge", "lt", "le", "eq", "ne"],
    *SAME,
)
def _mapped(reader: Reader, node: Node, index: Index) -> Value:
    name = name_of(node)
    args = [reader.argument(node, place, index) for place in range(len(node.args))]
    scale = node.kwargs.get("alpha", 1)
    if name in ("add", "sub") and scale != 1:
        args[1] = reader.program.map("mul", args[1], float(scale))  # type: ignore[arg-type]
    return reader.program.map(SAME.get(name, name), *args)


@rule("rsub")
def _rsub(reader: Reader, node: Node, index: Index) -> Value:
    return reader.program.map("sub", reader.argument(node, 1, index), reader.argument(node, 0, index))


@rule("clamp")
def _clamped(reader: Reader, node: Node, index: Index) -> Value:
    value, (low, high) = reader.argument(node, 0, index), [*node.args[1:], None][:2]
    value = value if low is None else reader.program.map("maximum", value, float(low))  # type: ignore[arg-type]
    return value if high is None else reader.program.map("minimum", value, float(high))  # type: ignore[arg-type]


@rule("pow")
def _power(reader: Reader, node: Node, index: Index) -> Value:
    value, exponent = reader.argument(node, 0, index), node.args[1]
    if not isinstance(exponent, (int, float)) or abs(exponent) not in (0.5, 1, 2, 3, 4):
        raise CannotCompile(f"there is no rule for the power {exponent}.")
    if abs(exponent) == 0.5:
        result = reader.program.map("sqrt", value)
    else:
        result = reader.total("mul", [value] * int(abs(exponent)))
    return reader.program.map("reciprocal", result) if exponent < 0 else result


@rule("tanh_backward", "sigmoid_backward")
def _slope(reader: Reader, node: Node, index: Index) -> Value:
    made = reader.program.map
    pull, y = reader.argument(node, 0, index), reader.argument(node, 1, index)
    if name_of(node) == "tanh_backward":
        return made("mul", pull, made("sub", 1.0, made("mul", y, y)))
    return made("mul", pull, made("mul", y, made("sub", 1.0, y)))


@rule("threshold_backward")
def _step_slope(reader: Reader, node: Node, index: Index) -> Value:
    above = reader.program.map("gt", reader.argument(node, 1, index), float(node.args[2]))  # type: ignore[arg-type]
    return reader.program.map("where", above, reader.argument(node, 0, index), 0.0)


@rule("sum", "amax", "mean")
def _reduced(reader: Reader, node: Node, index: Index) -> Value:
    source, dims, index = _reduction(node, index)
    value = reader.reduce("max" if name_of(node) == "amax" else "sum", source, dims, index)
    if name_of(node) == "mean":
        value = reader.program.map("div", value, float(math.prod(shape_of(source)[dim] for dim in dims)))
    return value


def _reduction(node: Node, index: Index) -> tuple[Node, list[int], Index]:
    """What is reduced, over which dimensions, and the index of those that stay."""
    source: Any = node.args[0]
    rank = len(shape_of(source))
    dims: Any = node.args[1] if len(node.args) > 1 and node.args[1] else range(rank)
    dims = sorted(dim % rank for dim in dims)
    if len(index) == rank:  # the dimensions that are gone were kept as ones
        index = tuple(part for dim, part in enumerate(index) if dim not in dims)
    return source, dims, index


@rule("var")
def _variance(reader: Reader, node: Node, index: Index) -> Value:
    source, dims, index = _reduction(node, index)
    if len(dims) != 1:
        raise CannotCompile("there is no rule for a variance over several dimensions.")
    size, (dim,) = shape_of(source)[dims[0]], dims
    made = reader.program.map
    mean = made("div", reader.reduce("sum", source, dims, index), float(size))

    def body(part: Affine, axes: tuple[Axis, ...]) -> Value:
        away = made("sub", reader.read(source, (*index[:dim], part, *index[dim:])), mean)
        return reader.program.reduce("sum", made("mul", away, away), axes)

    correction = float(node.args[2] if len(node.args) > 2 else node.kwargs.get("correction", 1))  # type: ignore[arg-type]
    return made("div", reader.total("add", reader.over(size, body)), float(size - correction))


@rule("mm", "bmm")
def _product(reader: Reader, node: Node, index: Index) -> Value:
    return _matrix_product(reader, node.args[0], node.args[1], index)


@rule("addmm", "baddbmm")
def _biased_product(reader: Reader, node: Node, index: Index) -> Value:
    made, (alpha, beta) = reader.program.map, (float(node.kwargs.get(name, 1)) for name in ("alpha", "beta"))  # type: ignore[arg-type]
    bias = made("mul", reader.argument(node, 0, index), beta)
    return made("add", bias, made("mul", _matrix_product(reader, node.args[1], node.args[2], index), alpha))


def _matrix_product(reader: Reader, left: Any, right: Any, index: Index) -> Value:
    *batch, row, column = index
    return reader.contract(
        shape_of(left)[-1],
        lambda k: reader.read(left, (*batch, row, k)),
        lambda k: reader.read(right, (*batch, k, column)),
    )


@rule("index_select")
def _picked(reader: Reader, node: Node, index: Index) -> Value:
    """x[numbers[i]] is Σ_k x[k] · (numbers[i] = k): no program can reach across a tile, but it can multiply."""
    source, dim, numbers = node.args
    size, dim = shape_of(source)[dim], dim % len(index)  # type: ignore[operator,index]
    wanted = reader.read(numbers, (index[dim],))  # type: ignore[arg-type]
    return reader.contract(
        size,
        lambda k: reader.read(source, (*index[:dim], k, *index[dim + 1 :])),  # type: ignore[arg-type]
        lambda k: _is_number(reader, wanted, k),
    )


@rule("index_add")
def _put(reader: Reader, node: Node, index: Index) -> Value:
    base, dim, numbers, source = node.args
    dim = dim % len(index)  # type: ignore[operator]
    added = reader.contract(
        shape_of(source)[dim],
        lambda k: reader.read(source, (*index[:dim], k, *index[dim + 1 :])),  # type: ignore[arg-type]
        lambda k: _is_number(reader, reader.read(numbers, (k,)), index[dim]),  # type: ignore[arg-type]
    )
    return reader.program.map("add", reader.argument(node, 0, index), added)


def _is_number(reader: Reader, numbers: Value, place: Affine) -> Value:
    if not place.terms or len(place.terms) > 1 or place.terms[0][1] != 1 or not isinstance(numbers, Ref):
        raise CannotCompile("there is no rule for an index that is itself strided.")
    return reader.program.equals(numbers, place.terms[0][0], place.offset)


@rule("_safe_softmax", "_softmax")
def _softmax(reader: Reader, node: Node, index: Index) -> Value:
    source: Any = node.args[0]
    dim: Any = node.args[1]
    dim, made = dim % len(index), reader.program.map
    rest = (*index[:dim], *index[dim + 1 :])
    most = reader.reduce("max", source, [dim], rest)

    def shifted(part: Affine) -> Value:
        return made("exp", made("sub", reader.read(source, (*index[:dim], part, *index[dim + 1 :])), most))

    whole = reader.over(shape_of(source)[dim], lambda part, axes: reader.program.reduce("sum", shifted(part), axes))
    return made("div", shifted(index[dim]), reader.total("add", whole))
