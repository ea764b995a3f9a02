"""Small questions to the nodes of a traced graph."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable
from typing import Any

from torch.fx import Graph, Node


def shape_of(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def name_of(node: Node) -> str:
    """The operation without its room and overload: `mul` for aten.mul.Tensor; nothing for what comes from outside."""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return "getitem"
    schema: Any = node.target
    return schema._schema.name.partition("::")[2].rstrip("_")


def unshaped(node: Node) -> Node:
    """The node that this is a view or a copy of, with the same numbers in the same order."""
    while name_of(node) in ("view", "_unsafe_view", "reshape", "clone"):
        node = node.args[0]  # type: ignore[assignment]
    return node


def multiplies(node: Node, constants: Container[Node]) -> bool:
    """Whether a node is a product of matrices whose right side is a constant, or one that is transposed."""
    if name_of(node) not in ("mm", "addmm"):
        return False
    right: Any = node.args[-1]
    while name_of(right) in ("t", "transpose", "permute"):
        right = right.args[0]
    return right in constants


def unreached(graph: Graph, roots: set[Node]) -> set[Node]:
    """The nodes that none of `roots` reaches."""
    reached = set(roots)
    for node in graph.nodes:
        if any(arg in reached for arg in node.all_input_nodes):
            reached.add(node)
    return {node for node in graph.nodes if node not in reached and node.op != "output"}


def leading_to(nodes: Iterable[Node], stop: Container[Node] = ()) -> set[Node]:
    """These nodes and all that they are computed from; what those of `stop` are computed from does not count."""
    found: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo.extend([] if node in stop else node.all_input_nodes)
    return found


def own_shape(node: Node) -> tuple[int, ...]:
    """The shape of one sample. One that is itself several rows has no dimension of one in front."""
    shape = shape_of(node)
    return shape[1:] if shape[0] == 1 else shape


def enumerate_parts(node: Node | None) -> list[tuple[int, Node]]:
    """A node, and what it is put together of, with the numbers of a sample that come before."""
    if node is None:
        return []
    parts, start = [(0, node)], 0
    if name_of(node) == "cat" and len(shape_of(node)) == 2:
        for part in node.args[0]:  # type: ignore[union-attr]
            parts.append((start, part))  # type: ignore[arg-type]
            start += shape_of(part)[-1]
    return parts


def columns(node: Node) -> list[tuple[int, Node]]:
    """What a matrix is put together of, side by side, each with the number of its first column."""
    whole, found, start = unshaped(node), [], 0
    if name_of(whole) == "cat" and len(shape_of(whole)) == 3 and whole.args[1:] in ((2,), (-1,)):
        for part in whole.args[0]:  # type: ignore[union-attr]
            found.append((start, part))
            start += shape_of(part)[-1]
    return found


def summands(node: Node) -> list[Node]:
    """What a node is the sum of, number for number."""
    if name_of(node) == "add" and all(isinstance(arg, Node) and shape_of(arg) == shape_of(node) for arg in node.args):
        return [term for arg in node.args for term in summands(arg)]  # type: ignore[arg-type]
    return [node]
