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
