"""Where else to read: what views, slices, transpositions and concatenations do to an index.

Each rule answers with the node that holds the number, and the index there; or with the number, if it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from nnarena.kernels.compiler.graph import name_of, shape_of
from nnarena.kernels.compiler.index import ZERO, Affine, Factor, Index, Straddle, broadcast, cut, reshape, strided
from nnarena.kernels.compiler.trace import CannotCompile

Seen = tuple[Node, Index] | float
View = Callable[[Any, Index], Seen]
VIEWS: dict[str, View] = {}


def view(*names: str) -> Callable[[View], View]:
    """Registers a rule for operations of these names."""

    def register(rule: View) -> View:
        VIEWS.update(dict.fromkeys(names, rule))
        return rule

    return register


@view("alias", "clone", "detach", "_to_copy", "lift_fresh_copy", "contiguous", "to", "convert_element_type")
def same(node: Any, index: Index) -> Seen:
    return node.args[0], index


@view("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze")
def reshaped(node: Any, index: Index) -> Seen:
    source = node.args[0]
    return source, reshape(index, shape_of(node), shape_of(source))


@view("as_strided")
def as_strided(node: Any, index: Index) -> Seen:
    source, _, strides, *offset = node.args
    while name_of(source) == "as_strided":  # a view of a view says where its numbers lie in the memory of the first
        source = source.args[0]
    if not source.meta["val"].is_contiguous():
        raise CannotCompile("a strided view of a tensor that is not contiguous.")
    return source, strided(index, strides, (offset or [0])[0] or 0, shape_of(source))


@view("expand")
def expanded(node: Any, index: Index) -> Seen:
    source = node.args[0]
    return source, broadcast(index, shape_of(source))


@view("broadcast_in_dim")
def broadcast_in_dim(node: Any, index: Index) -> Seen:
    source, _, places = node.args
    return source, broadcast(tuple(index[place] for place in places), shape_of(source))


@view("t")
def turned(node: Any, index: Index) -> Seen:
    return node.args[0], tuple(reversed(index))


@view("transpose")
def transposed(node: Any, index: Index) -> Seen:
    source, one, other = node.args
    parts = list(index)
    parts[one], parts[other] = parts[other], parts[one]
    return source, tuple(parts)


@view("permute")
def permuted(node: Any, index: Index) -> Seen:
    source, dims = node.args
    parts = [ZERO] * len(index)
    for place, dim in enumerate(dims):
        parts[dim] = index[place]
    return source, tuple(parts)


@view("slice")
def sliced(node: Any, index: Index) -> Seen:
    source, *where = node.args
    dim, begin, _, step = slice_of(where, shape_of(source))
    return source, (*index[:dim], index[dim] * step + begin, *index[dim + 1 :])


@view("select")
def selected(node: Any, index: Index) -> Seen:
    source, dim, place = node.args
    dim %= len(shape_of(source))
    return source, (*index[:dim], Affine(place % shape_of(source)[dim]), *index[dim:])


@view("flip")
def flipped(node: Any, index: Index) -> Seen:
    source, dims = node.args
    parts = list(index)
    for dim in dims:
        parts[dim] = parts[dim] * -1 + (shape_of(source)[dim] - 1)
    return source, tuple(parts)


@view("roll")
def rolled(node: Any, index: Index) -> Seen:
    source, shifts, *dims = node.args
    if not dims:
        raise CannotCompile("there is no rule for roll over all dimensions at once.")
    parts = list(index)
    for shift, dim in zip(shifts, dims[0], strict=True):
        size = shape_of(source)[dim]
        shift %= size
        cut(parts[dim], shift)
        parts[dim] = parts[dim] + (size - shift if parts[dim].low < shift else -shift)
    return source, tuple(parts)


@view("getitem")
def part(node: Any, index: Index) -> Seen:
    """One of the parts that an operation with several results gives."""
    several, number = node.args
    source, *how = several.args
    match name_of(several):
        case "unbind":
            dim = (how[0] if how else 0) % len(shape_of(source))
            return source, (*index[:dim], Affine(number), *index[dim:])
        case "split_with_sizes":
            begin = sum(how[0][:number])
        case "split":
            begin = how[0] * number
        case other:
            raise CannotCompile(f"there is no rule for the parts of {other}.")
    dim = (how[1] if len(how) > 1 else 0) % len(shape_of(source))
    return source, (*index[:dim], index[dim] + begin, *index[dim + 1 :])


@view("cat")
def joined(node: Any, index: Index) -> Seen:
    sources, *dims = node.args
    dim, begin = (dims or [0])[0] % len(index), 0
    for source in sources:
        end = begin + shape_of(source)[dim]
        if index[dim].low < end:
            cut(index[dim], end)
            return source, (*index[:dim], index[dim] + -begin, *index[dim + 1 :])
        begin = end
    raise AssertionError("an index beyond the end")


@view("slice_scatter")
def slice_replaced(node: Any, index: Index) -> Seen:
    base, new, *where = node.args
    dim, begin, end, step = slice_of(where, shape_of(base))
    cut(index[dim], begin)
    cut(index[dim], end)
    inside = index[dim] + -begin
    if not (begin <= index[dim].low < end and residue(inside, step) == 0):
        return base, index
    terms = tuple((axis, stride // step) for axis, stride in inside.terms)
    return new, (*index[:dim], Affine(inside.offset // step, terms), *index[dim + 1 :])


@view("select_scatter")
def row_replaced(node: Any, index: Index) -> Seen:
    base, new, dim, place = node.args
    dim %= len(index)
    place %= shape_of(base)[dim]
    cut(index[dim], place)
    cut(index[dim], place + 1)
    if index[dim].low == place:
        return new, (*index[:dim], *index[dim + 1 :])
    return base, index


@view("constant_pad_nd")
def padded(node: Any, index: Index) -> Seen:
    source, widths, *fill = node.args
    parts = list(index)
    for number in range(len(widths) // 2):
        dim = len(index) - 1 - number
        before, size = widths[2 * number], shape_of(source)[dim]
        cut(parts[dim], before)
        cut(parts[dim], before + size)
        if not before <= parts[dim].low < before + size:
            return float((fill or [0])[0])
        parts[dim] = parts[dim] + -before
    return source, tuple(parts)


@view("full", "full_like", "fill")
def filled(node: Any, index: Index) -> Seen:
    return float(node.args[1])


@view("new_full")
def newly_filled(node: Any, index: Index) -> Seen:
    return float(node.args[2])


@view("scalar_tensor")
def number(node: Any, index: Index) -> Seen:
    return float(node.args[0])


@view("zeros", "zeros_like", "new_zeros", "empty_like")
def zeros(node: Any, index: Index) -> Seen:
    return 0.0


@view("ones", "ones_like", "new_ones")
def ones(node: Any, index: Index) -> Seen:
    return 1.0


def residue(index: Affine, step: int) -> int:
    """The index modulo a step, which must be one number: an axis that has several is taken apart."""
    for axis, stride in index.terms:
        if stride % step:
            raise Factor(axis, step) if stride == 1 and axis.size % step == 0 < axis.size - step else Straddle(axis, 1)
    return index.offset % step


def slice_of(where: list[Any], shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """dim, begin, end and step of a slice, of which any at the end may be missing."""
    dim, begin, end, step = [*where, *(0, None, None, 1)[len(where) :]]
    dim %= len(shape)
    begin, end, _ = slice(begin, end).indices(shape[dim])
    return dim, begin, end, step
