"""What is done where: in the loop, saved by it, or in one product after it.

What depends on parameters only is computed once, before the loop (`Tile.steady`). Here is the rest: which numbers the
way forward saves for the way back, and which gradients of weights are one product of matrices over all samples and
steps instead of a sum that every program carries along.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Node

from nnarena.kernels.compiler.graph import columns, leading_to, multiplies, name_of, shape_of, unreached, unshaped
from nnarena.kernels.compiler.index import Affine, Axis, Index
from nnarena.kernels.compiler.plan import Plan
from nnarena.kernels.compiler.rewrite import Reader
from nnarena.kernels.compiler.tiles import Ref, Value
from nnarena.kernels.compiler.trace import Traced
from nnarena.kernels.compiler.views import VIEWS

ADDED = ("add", "relu")
ACTIVATIONS = ("tanh", "sigmoid")
PUT_TOGETHER = ("cat", "view", "_unsafe_view")
MATRIX = 16  # the least number of columns that the matrix units multiply
REDUCTIONS = ("sum", "amax")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def worth_saving(forward: set[Node], plan: Plan) -> dict[Node, list[Node]]:
    """Products over at least so many numbers on the way forward, each with what is added to it and its relu; and what
    is to be saved beside it: all that was made of one product is written side by side.

    Where a sample is a matrix, those with weights, which make many numbers of few; attention makes few of many.
    """
    found: dict[Node, list[Node]] = {}
    for node in forward:
        if name_of(node) not in (("mm", "addmm") if plan.matrices else ("mm", "addmm", "bmm")):
            continue
        if shape_of(node.args[-2])[-1] < plan.save or (shape_of(node)[0] != 1 and not plan.matrices):
            continue
        together = _activated(node, forward) if plan.lanes or plan.halves else _apart(node, forward, plan)
        together = [part for part in together if part not in found]  # two products may end in one sum
        found |= dict.fromkeys(together, together)
    if plan.matrices:
        found |= {node: [node] for node in forward if node not in found and _has_one_a_row(node)}
    if plan.aside and plan.rows == 1:  # all threads of a sample wait for each other to know a sum
        found |= {node: [node] for node in forward if name_of(node) in REDUCTIONS and node not in found}
    return found


def _has_one_a_row(node: Node) -> bool:
    """Whether a node is computed and has a single number for every row of a sample."""
    if node.op != "call_function" or name_of(node) in VIEWS:
        return False
    return len(shape_of(node)) == 3 and shape_of(node)[1] > 1 and shape_of(node)[2] == 1


def kept_anyway(traced: Traced, forward: set[Node], but: Container[int] = ()) -> dict[Node, tuple[Node, int]]:
    """What the way forward keeps because gradients of weights, `but` some, are products with it, or with it beside
    others: each with the whole that is kept, and the number of its first column there."""
    found: dict[Node, tuple[Node, int]] = {}
    for place, gradient in enumerate(traced.grad_constants):
        for outer in factors(gradient) if gradient and place not in but else []:
            for whole in (side for side in (outer.left, outer.right) if side in forward):
                for start, part in [(0, whole), *columns(whole)]:
                    found.setdefault(unshaped(part), (whole, start))
    return found


def _apart(node: Node, forward: set[Node], plan: Plan) -> list[Node]:
    """A product, or its parts, with what is added to them; of matrices, the parts that it has then."""
    parts = _parts(node)
    sums = [_with(ADDED, part, forward) for part in parts]
    if sums != parts:
        return [*dict.fromkeys(sums)]
    whole = _with(ADDED, node, forward)
    return (plan.matrices and _parts(whole)) or [whole]


def _activated(node: Node, forward: set[Node]) -> list[Node]:
    """The same after functions whose slopes need nothing but what they are: they take long to be computed again."""
    node = _with(ADDED, node, forward)
    return [*dict.fromkeys(_with(ADDED + ACTIVATIONS, part, forward) for part in _parts(node) or [node])]


def _parts(node: Node) -> list[Node]:
    """What a node is used for if everybody needs another part of it, such as one of the gates that a product makes."""
    users = list(node.users)
    sizes = [math.prod(shape_of(user)) if name_of(user) in VIEWS else math.inf for user in users]
    return users if len(users) > 1 and sum(sizes) == math.prod(shape_of(node)) else []


def _with(names: tuple[str, ...], node: Node, forward: set[Node]) -> Node:
    """What a node is after all that is added to it, or done to it alone."""
    while (user := _next(node)) in forward and name_of(user) in names:
        if math.prod(shape_of(user)) != math.prod(shape_of(node)):
            break
        node = user
    return node


def compared(traced: Traced) -> set[Node]:
    """Numbers that a step compares with each other on its way forward, such as slots of a memory to put them in order.

    Many begin as equals. Computed again on the way back they might be rounded differently, and the order be another.
    """
    moving = {*traced.graph.nodes} - unreached(traced.graph, {*traced.state, *traced.inputs})
    found = {
        _source(arg)
        for node in leading_to([*traced.new_state, traced.output])
        if name_of(node) in COMPARISONS and moving.issuperset(node.args)
        for arg in node.all_input_nodes
    }
    return {node for node in found if node.op == "call_function" and shape_of(node)[0] == 1}


def _source(node: Node) -> Node:
    """What a node is a view of."""
    while name_of(node) in VIEWS and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    return node


def _next(node: Node) -> Any:
    """The one node that needs this one, or that which needs what is a view of it."""
    users = list(node.users)
    if len(users) != 1:
        return None
    return _next(users[0]) if name_of(users[0]) in ("view", "_unsafe_view") else users[0]


def read_in_other_parts(traced: Traced) -> list[Node]:
    """Vectors that a product with weights makes and others read in parts, or that are put together of parts for such a
    product, if the parts are too narrow for the matrix units."""
    products = [node for node in traced.graph.nodes if multiplies(node, traced.constants) and shape_of(node)[0] == 1]
    made = [node for node in products if _narrow(node, [user for user in node.users if name_of(user) in VIEWS])]
    multiplied = dict.fromkeys(node.args[-2] for node in products)
    return [
        *made,
        *(node for node in multiplied if name_of(node) in PUT_TOGETHER and _narrow(node, node.all_input_nodes)),
    ]


def _narrow(whole: Node, parts: list[Node]) -> bool:
    return shape_of(whole)[-1] >= MATRIX and any(shape_of(part)[-1] < MATRIX for part in parts)


@dataclass(frozen=True)
class Outer:
    """scale · leftᵀ · right of one sample, or that transposed. Both have a row, or several, a sample."""

    left: Node
    right: Node
    turned: bool = False
    scale: float = 1.0


def factors(node: Any) -> list[Outer]:
    """A gradient as a sum of outer products: what is one for a sample is a product of matrices over all of them."""
    match name_of(node):
        case "t":
            return [replace(outer, turned=not outer.turned) for outer in factors(node.args[0])]
        case "neg":
            return [replace(outer, scale=-outer.scale) for outer in factors(node.args[0])]
        case "mul" if not isinstance(node.args[1], Node):
            return [replace(outer, scale=outer.scale * node.args[1]) for outer in factors(node.args[0])]
        case "add" if all(isinstance(arg, Node) for arg in node.args):
            one, other = (factors(arg) for arg in node.args)
            return one + other if one and other else []
        case "mm" if name_of(node.args[0]) in ("t", "transpose", "permute"):
            return [Outer(node.args[0].args[0], node.args[1])]
        case _:
            return []


def addends(node: Any) -> list[Node]:
    """What a gradient is a sum of, over the samples and the rows that each of them has; none if it is no such sum."""
    match name_of(node):
        case "view" if name_of(node.args[0]) == "sum" and len(shape_of(node)) == len(shape_of(node.args[0])) - 1:
            return addends(node.args[0])
        case "add" if all(isinstance(arg, Node) for arg in node.args):
            one, other = (addends(arg) for arg in node.args)
            return one + other if one and other else []
        case "sum" if len(node.args) > 1 and list(node.args[1]) == [*range(len(node.args[1]))]:
            return [node.args[0]]
        case _:
            return []


def over_rows(reader: Reader, node: Any, index: Index) -> list[Value]:
    """A gradient of a constant as terms that are added up over the samples of a program.

    A product of matrices includes that sum already. If one term does, all do.
    """
    terms: list[Value] = [term for term in _terms(reader, node, index) if isinstance(term, Ref) or term != 0]
    rows = reader.program.batch
    apart = [isinstance(term, Ref) and rows in term.axes for term in terms]
    if all(apart):
        return terms
    return [
        reader.program.reduce("sum", term, (rows,)) if by_row else term
        for term, by_row in zip(terms, apart, strict=True)
    ]


def _terms(reader: Reader, node: Any, index: Index) -> list[Value]:
    name = "" if node in reader.leaves else name_of(node)
    if name in VIEWS:
        seen = VIEWS[name](node, index)
        return _terms(reader, *seen) if isinstance(seen, tuple) else [seen]
    if name == "add" and all(isinstance(arg, Node) and shape_of(arg) == shape_of(node) for arg in node.args):
        return [term for arg in node.args for term in _terms(reader, arg, index)]
    if name == "neg" or (name == "mul" and not isinstance(node.args[1], Node)):
        factor = -1.0 if name == "neg" else float(node.args[1])
        return [reader.program.map("mul", term, factor) for term in _terms(reader, node.args[0], index)]
    if name != "mm":
        return [reader.read(node, index)]
    left, right = node.args

    def product(k: Affine, axes: tuple[Axis, ...]) -> Value:
        a, b = reader.read(left, (index[0], k)), reader.read(right, (k, index[1]))
        rows = reader.program.batch
        both = all(isinstance(side, Ref) and rows in side.axes for side in (a, b))
        return reader.program.product(a, b, (rows, *axes) if both and not reader.program.each else axes)

    return reader.over(shape_of(left)[1], product)
