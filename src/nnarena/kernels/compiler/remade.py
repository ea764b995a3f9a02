"""Gradients of weights whose factors are made again of less than they are.

A factor of a product over all samples and steps lies in memory: one of the two loops writes it, and the product reads
it. One that is wider than what it is made of, such as the units between two dense layers, takes longer on this way than
it takes to be made again. Gradients that read the same are then added up by a kernel of their own, after the loops.
What their factors are made of is written down, and nothing else: the factors are made where they are multiplied.

Gradients of few numbers have such kernels, too, and those whose factors a sample's matrices make of each other. There a
warp has a sample of its own, and waits for nobody until programs are done.
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
from nnarena.kernels.compiler.plan import Plan
from nnarena.kernels.compiler.tiles import MAPS, Ref, Tile, padded
from nnarena.kernels.compiler.trace import Traced

PASSED = ("relu", "threshold_backward", "cat")  # what takes no time
SMALL = 1_024  # numbers of a gradient, for which a warp has room beside what it reads
ROOM = 128  # registers that a thread has for what a kernel adds up
TURNED = ("t", "transpose")


@dataclass
class Group:
    """Gradients that one kernel adds up.

    places   the constants whose gradients they are
    origins  what it reads, beside constants, inputs and states
    made     what it makes of that
    small    whether there are few of them
    """

    places: list[int] = field(default_factory=list)
    origins: dict[Node, None] = field(default_factory=dict)
    made: set[Node] = field(default_factory=set)
    small: bool = False

    @property
    def by_sample(self) -> bool:
        """Whether a warp adds them up of a sample of its own: they are few, or made of what a sample's matrices make of
        each other."""
        return self.small or any(name_of(node) == "bmm" for node in self.made)

    @property
    def enough(self) -> float:
        """Which part of its factors it may read, to be worth it. A warp with a sample of its own waits for nobody."""
        return 2 / 3 if self.by_sample else 1 / 2


def groups(traced: Traced) -> list[Group]:
    """Gradients that read the same, where that is enough less than their factors; and small ones."""
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
    chosen = [group for group in _joined(found) if _size(group.origins) < group.enough * _size(_sides(group, traced))]
    rest = [group for group in found if all(group.places[0] not in other.places for other in chosen)]
    found = chosen + [_small(group, traced) for group in rest if _is_small(group, traced)]
    for place, term in sums:
        for group in found:
            if all(node in group.origins or node in group.made for node in _parts(term, traced, group)):
                group.places.append(place)
                break
    return found


def _is_small(group: Group, traced: Traced) -> bool:
    """Whether a gradient is a product of matrices, and has few numbers."""
    sides = _factors(group, traced)
    numbers = sum(math.prod(shape_of(traced.grad_constants[place])) for place in group.places)
    return numbers <= SMALL and all(len(own_shape(side)) > 1 and own_shape(side)[0] > 1 for side in sides)


def _small(group: Group, traced: Traced) -> Group:
    """A group that reads the factors as they are."""
    return Group(group.places, dict.fromkeys(map(unshaped, _factors(group, traced))), small=True)


def _factors(group: Group, traced: Traced) -> list[Node]:
    outers = [outer for place in group.places for outer in factors(traced.grad_constants[place])]
    return [side for outer in outers for side in (outer.left, outer.right)]


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


def shares(sums: list[Sum], plan: Plan) -> list[list[Sum]]:
    """Sums that are made of the same products, and others of the same gradients; each share is the work of a kernel,
    which has room for them."""
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
    shares = [many for _, many in found] or [[]]
    for each in rest:
        next((share for share in shares if each.source.name in _names(share)), shares[0]).append(each)
    joined: list[list[Sum]] = []
    for share in shares:
        for other in joined:
            if _names(other) & _names(share) and _room([*other, *share], plan) <= ROOM:
                other += share
                break
        else:
            joined.append(share)
    return joined


def _names(share: list[Sum]) -> set[str]:
    return {each.source.name for each in share}


def _room(share: list[Sum], plan: Plan) -> int:
    """Registers that a thread has for sums and what they are made of."""
    values = [term for each in share for term in each.terms if isinstance(term, Ref)]
    products = products_in(arg for term in values for arg in term.tile.args)
    sums = sum(padded(term.axes) for term in values)
    return (sums + sum(padded(tile.axes) for tile in products)) // (32 * plan.warps)


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
