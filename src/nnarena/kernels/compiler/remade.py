"""Gradients of weights whose factors are made again of less than they are.

A factor of a product over all samples and steps lies in memory: one of the two loops writes it, and the product reads
it. One that is wider than what it is made of, such as the units between two dense layers, takes longer on this way than
it takes to be made again. Gradients that read the same are then added up by a kernel of their own, after the loops.
What their factors are made of is written down, and nothing else: the factors are made where they are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from nnarena.kernels.compiler.graph import multiplies, name_of, own_shape, shape_of, unshaped
from nnarena.kernels.compiler.kernel import Sum
from nnarena.kernels.compiler.partition import addends, factors
from nnarena.kernels.compiler.tiles import MAPS, Ref, Tile
from nnarena.kernels.compiler.trace import Traced

PASSED = ("relu", "threshold_backward", "cat")  # what takes no time
TURNED = ("t", "transpose")


@dataclass
class Group:
    """Gradients that one kernel adds up.

    places   the constants whose gradients they are
    origins  what it reads, beside constants, inputs and states
    made     what it makes of that
    """

    places: list[int] = field(default_factory=list)
    origins: dict[Node, None] = field(default_factory=dict)
    made: set[Node] = field(default_factory=set)


def groups(traced: Traced) -> list[Group]:
    """Gradients that read the same, where that is less than half of their factors."""
    found: list[Group] = []
    sums: list[tuple[int, Node]] = []
    for place, gradient in enumerate(traced.grad_constants):
        if gradient is None or name_of(gradient) == "zeros_like":
            continue
        if outers := factors(gradient):
            made = Group([place])
            for side in (side for outer in outers for side in (outer.left, outer.right)):
                _look_back(side, traced, made)
            found.append(made)
        elif (term := _summed(gradient)) is not None:
            sums.append((place, term))
    found = [group for group in _joined(found) if 2 * _size(group.origins) < _size(_sides(group, traced))]
    for place, term in sums:
        for group in found:
            if all(node in group.origins or node in group.made for node in _parts(term, traced, group)):
                group.places.append(place)
                break
    return found


def _look_back(node: Node, traced: Traced, group: Group) -> None:
    """What a factor is made of, one product back."""
    node = unshaped(node)
    given = {*traced.constants, *traced.inputs, *traced.state}
    if node in given:
        return
    if name_of(node) in PASSED or (name_of(node) == "add" and any(arg in given for arg in node.all_input_nodes)):
        group.made.add(node)
        for arg in node.all_input_nodes:
            _look_back(arg, traced, group)
    elif name_of(node) == "bmm" or multiplies(node, traced.constants):
        group.made.add(node)
        for arg in node.all_input_nodes:
            if (source := _unturned(arg)) not in given:
                group.origins.setdefault(source)
    else:
        group.origins.setdefault(node)


def _unturned(node: Node) -> Node:
    """What a node shows, perhaps transposed."""
    while name_of(unshaped(node)) in TURNED:
        node = unshaped(node).args[0]  # type: ignore[assignment]
    return unshaped(node)


def _parts(term: Node, traced: Traced, group: Group) -> Iterator[Node]:
    """What a term of a sum is made of, number for number."""
    term = unshaped(term)
    if term in group.origins or term in group.made or name_of(term) not in MAPS:
        yield term
        return
    for arg in term.all_input_nodes:
        if unshaped(arg) not in traced.constants:
            yield unshaped(arg)


def _summed(gradient: Node) -> Node | None:
    """What a gradient is the sum of, over the samples, and over their rows or not."""
    if len(terms := addends(gradient)) == 1:
        return terms[0]
    source = unshaped(gradient)
    if name_of(source) != "sum" or shape_of(source)[-1] != math.prod(shape_of(source)):
        return None
    return source.args[0]  # type: ignore[return-value]


def _sides(group: Group, traced: Traced) -> dict[Node, None]:
    """The factors themselves."""
    sides: dict[Node, None] = {}
    for place in group.places:
        for outer in factors(traced.grad_constants[place]):
            sides |= dict.fromkeys(map(unshaped, (outer.left, outer.right)))
    parts = {unshaped(part) for side in sides if name_of(side) == "cat" for part in side.all_input_nodes}
    return {side: None for side in sides if side not in (*parts, *traced.inputs, *traced.state)}


def _size(nodes: dict[Node, None]) -> int:
    return sum(math.prod(own_shape(node)) for node in nodes)


def _joined(found: list[Group]) -> list[Group]:
    """Those that have an origin in common become one."""
    joined: list[Group] = []
    for group in found:
        shared = [other for other in joined if other.origins.keys() & group.origins.keys()]
        joined = [other for other in joined if other not in shared]
        places, origins, made = [], {}, set()
        for each in (*shared, group):
            places, origins, made = places + each.places, origins | each.origins, made | each.made
        joined.append(Group(places, origins, made))
    return joined


def shares(sums: list[Sum]) -> list[list[Sum]]:
    """Sums that are made of the same products; each share is the work of a kernel, which has room for them."""
    found: list[tuple[set[Tile], list[Sum]]] = []
    rest: list[Sum] = []
    for each in sums:
        below = [arg for term in each.terms if isinstance(term, Ref) for arg in term.tile.args]
        products = products_in(below)
        if not products:
            rest.append(each)
            continue
        same = [share for share in found if share[0] & products]
        found = [share for share in found if share not in same]
        found.append(
            (products.union(*(known for known, _ in same)), [*(one for _, many in same for one in many), each])
        )
    first, *others = [many for _, many in found] or [[]]
    return [[*first, *rest], *others]


def products_in(values: Iterable[Any]) -> set[Tile]:
    """The products that some values are made of, or are."""
    found: set[Tile] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if isinstance(value, Ref) and value.tile not in found:
            todo += value.tile.args
            if value.tile.op in ("dot", "dots") and not value.tile.steady:
                found.add(value.tile)
    return found
