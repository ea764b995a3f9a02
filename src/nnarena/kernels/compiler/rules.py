"""What is computed: how the number of a node comes from the numbers of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nnarena.kernels.compiler.graph import name_of, shape_of
from nnarena.kernels.compiler.index import Affine, Axis, Index
from nnarena.kernels.compiler.tiles import MAPS, Ref, Value
from nnarena.kernels.compiler.trace import CannotCompile

if TYPE_CHECKING:
    from nnarena.kernels.compiler.rewrite import Reader

Rule = Callable[["Reader", Any, Index], Value]
RULES: dict[str, Rule] = {}

# Names that torch has for operations of `MAPS`, besides their own.
OTHER_NAMES = {
    "logical_and": "and",
    "bitwise_and": "and",
    "logical_or": "or",
    "bitwise_or": "or",
    "logical_not": "not",
    "bitwise_not": "not",
    "sgn": "sign",
    "clamp_min": "maximum",
    "clamp_max": "minimum",
}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operations of these names."""

    def register(make: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, make))
        return make

    return register


@rule(*MAPS, *OTHER_NAMES)
def mapped(reader: Reader, node: Any, index: Index) -> Value:
    name = name_of(node)
    args = [reader.argument(arg, index) for arg in node.args]
    scale = node.kwargs.get("alpha", 1)
    if name in ("add", "sub") and scale != 1:
        args[1] = reader.program.map("mul", args[1], float(scale))
    return reader.program.map(OTHER_NAMES.get(name, name), *args)


@rule("rsub")
def subtracted_from(reader: Reader, node: Any, index: Index) -> Value:
    one, other = (reader.argument(arg, index) for arg in node.args)
    return reader.program.map("sub", other, one)


@rule("clamp")
def clamped(reader: Reader, node: Any, index: Index) -> Value:
    value, low, high = [*node.args, None, None][:3]
    value = reader.argument(value, index)
    value = value if low is None else reader.program.map("maximum", value, float(low))
    return value if high is None else reader.program.map("minimum", value, float(high))


@rule("pow")
def power(reader: Reader, node: Any, index: Index) -> Value:
    value, exponent = node.args
    if not isinstance(exponent, (int, float)) or abs(exponent) not in (0.5, 1, 2, 3, 4):
        raise CannotCompile(f"there is no rule for the power {exponent}.")
    value = reader.argument(value, index)
    if abs(exponent) == 0.5:
        result = reader.program.map("sqrt", value)
    else:
        result = reader.total("mul", [value] * int(abs(exponent)))
    return reader.program.map("reciprocal", result) if exponent < 0 else result


@rule("tanh_backward")
def tanh_slope(reader: Reader, node: Any, index: Index) -> Value:
    made, (pull, y) = reader.program.map, (reader.argument(arg, index) for arg in node.args)
    return made("mul", pull, made("sub", 1.0, made("mul", y, y)))


@rule("sigmoid_backward")
def sigmoid_slope(reader: Reader, node: Any, index: Index) -> Value:
    made, (pull, y) = reader.program.map, (reader.argument(arg, index) for arg in node.args)
    return made("mul", pull, made("mul", y, made("sub", 1.0, y)))


@rule("threshold_backward")
def relu_slope(reader: Reader, node: Any, index: Index) -> Value:
    pull, x, threshold = node.args
    if threshold == 0:
        above = reader.above_zero(x, index)
    else:
        above = reader.program.map("gt", reader.argument(x, index), float(threshold))
    return reader.program.map("where", above, reader.argument(pull, index), 0.0)


@rule("sum", "mean", "amax")
def reduced(reader: Reader, node: Any, index: Index) -> Value:
    source, dims, index = reduction(node, index)
    value = reader.reduce("max" if name_of(node) == "amax" else "sum", source, dims, index)
    if name_of(node) == "mean":
        value = reader.program.map("div", value, float(math.prod(shape_of(source)[dim] for dim in dims)))
    return value


@rule("var")
def variance(reader: Reader, node: Any, index: Index) -> Value:
    source, dims, index = reduction(node, index)
    if len(dims) != 1:
        raise CannotCompile("there is no rule for a variance over several dimensions.")
    (dim,), made = dims, reader.program.map
    size = shape_of(source)[dim]
    mean = made("div", reader.reduce("sum", source, dims, index), float(size))

    def squares(part: Affine, axes: tuple[Axis, ...]) -> Value:
        away = made("sub", reader.read(source, (*index[:dim], part, *index[dim:])), mean)
        return reader.program.reduce("sum", made("mul", away, away), axes)

    correction = node.args[2] if len(node.args) > 2 else node.kwargs.get("correction", 1)
    return made("div", reader.total("add", reader.over(size, squares)), float(size - correction))


def reduction(node: Any, index: Index) -> tuple[Any, list[int], Index]:
    """What is reduced, over which dimensions, and the index of those that stay."""
    source, *how = node.args
    rank = len(shape_of(source))
    dims = sorted(dim % rank for dim in (how[0] if how and how[0] else range(rank)))
    if len(index) == rank:  # the dimensions that are gone were kept as ones
        index = tuple(part for dim, part in enumerate(index) if dim not in dims)
    return source, dims, index


@rule("mm", "bmm")
def product(reader: Reader, node: Any, index: Index) -> Value:
    left, right = node.args
    if name_of(node) == "bmm" and all(name_of(user) == "transpose" for user in node.users):
        return turned_product(reader, left, right, index)
    return matrix_product(reader, left, right, index)


@rule("addmm", "baddbmm")
def biased_product(reader: Reader, node: Any, index: Index) -> Value:
    bias, left, right = node.args
    made, (alpha, beta) = reader.program.map, (float(node.kwargs.get(name, 1)) for name in ("alpha", "beta"))
    if alpha == beta == 1 and reader.takes_apart(shape_of(left)[-1]):  # each term is one instruction with its sum
        terms = reader.over(shape_of(left)[-1], lambda k, _: _term(reader, left, right, index, k))
        return reader.total("add", [reader.argument(bias, index), *terms])
    scaled = made("mul", matrix_product(reader, left, right, index), alpha)
    return made("add", made("mul", reader.argument(bias, index), beta), scaled)


def matrix_product(reader: Reader, left: Any, right: Any, index: Index) -> Value:
    *batch, row, column = index
    return reader.contract(
        shape_of(left)[-1],
        lambda k: reader.read(left, (*batch, row, k)),
        lambda k: reader.read(right, (*batch, k, column)),
    )


def turned_product(reader: Reader, left: Any, right: Any, index: Index) -> Value:
    """The same where everybody wants it transposed: Bᵀ Aᵀ, whose rows are columns here."""
    *batch, row, column = index
    return reader.contract(
        shape_of(left)[-1],
        lambda k: reader.read(right, (*batch, k, column)),
        lambda k: reader.read(left, (*batch, row, k)),
    )


def _term(reader: Reader, left: Any, right: Any, index: Index, k: Affine) -> Value:
    """One of the products that are added up, where k is a single place."""
    *batch, row, column = index
    return reader.program.map("mul", reader.read(left, (*batch, row, k)), reader.read(right, (*batch, k, column)))


@rule("index_select")
def picked(reader: Reader, node: Any, index: Index) -> Value:
    """x[numbers[i]] is Σ_k x[k] · (numbers[i] = k): no program can reach across a tile, but it can multiply."""
    source, dim, numbers = node.args
    dim %= len(index)
    wanted = reader.read(numbers, (index[dim],))
    return reader.contract(
        shape_of(source)[dim],
        lambda k: reader.read(source, (*index[:dim], k, *index[dim + 1 :])),
        lambda k: is_number(reader, wanted, k),
    )


@rule("index_add")
def put(reader: Reader, node: Any, index: Index) -> Value:
    base, dim, numbers, source = node.args
    dim %= len(index)
    added = reader.contract(
        shape_of(source)[dim],
        lambda k: reader.read(source, (*index[:dim], k, *index[dim + 1 :])),
        lambda k: is_number(reader, reader.read(numbers, (k,)), index[dim]),
    )
    return reader.program.map("add", reader.argument(base, index), added)


def is_number(reader: Reader, numbers: Value, place: Affine) -> Value:
    """One where a number says `place`, else zero."""
    if len(place.terms) != 1 or place.terms[0][1] != 1 or not isinstance(numbers, Ref):
        raise CannotCompile("there is no rule for an index that is itself strided.")
    return reader.program.equals(numbers, place.terms[0][0], place.offset)


@rule("_softmax", "_safe_softmax")
def softmax(reader: Reader, node: Any, index: Index) -> Value:
    source, dim, *_ = node.args
    dim, made = dim % len(index), reader.program.map
    most = reader.reduce("max", source, [dim], (*index[:dim], *index[dim + 1 :]))

    def shifted(part: Affine) -> Value:
        return made("exp", made("sub", reader.read(source, (*index[:dim], part, *index[dim + 1 :])), most))

    whole = reader.over(shape_of(source)[dim], lambda part, axes: reader.program.reduce("sum", shifted(part), axes))
    return made("div", shifted(index[dim]), reader.total("add", whole))
