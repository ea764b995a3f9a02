"""What the way forward keeps: for the way back, which would take longer to compute it again, and for gradients of
constants that are products with it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch.fx import Node

from nnarena.kernels.compiler.compiled import Place
from nnarena.kernels.compiler.graph import name_of, own_shape, unreached, unshaped
from nnarena.kernels.compiler.memory import Memory
from nnarena.kernels.compiler.partition import compared, kept_anyway, worth_saving
from nnarena.kernels.compiler.places import rows_of
from nnarena.kernels.compiler.plan import Plan
from nnarena.kernels.compiler.remade import Group
from nnarena.kernels.compiler.tiles import Carry, Source
from nnarena.kernels.compiler.trace import Traced


class Kept:
    """What may be kept, and what is, because somebody asked for it while the way back was built.

    saved    nodes that the way back reads, and where the way forward writes them
    early    factors of gradients that it writes besides
    signs    of these nodes, it writes no more than whether they are above zero
    written  nodes whose numbers some kernel has written, and where they lie
    rows     the same of several nodes, as the rows of one memory
    """

    def __init__(self, memory: Memory, traced: Traced, plan: Plan, groups: list[Group]) -> None:
        self.memory = memory
        self.on_the_way = unreached(traced.graph, {*traced.pull_state, traced.pull_output})  # what forward computes
        self.compared = compared(traced)
        again = {node for group in groups for node in group.made}  # is not written, but made again
        self.clipped = {node for node in again & self.on_the_way if name_of(node) == "relu"}
        dear = worth_saving(self.on_the_way, plan).items()
        self.savable = {node: [node] for node in self.compared}
        self.savable |= {node: beside for node, beside in dear if unshaped(node) not in again}
        self.anyway: dict[Node, tuple[Node, int]] = {}
        if plan.matrices:
            apart = [place for group in groups for place in group.places]
            origins = {node: (node, 0) for group in groups for node in group.origins if node in self.on_the_way}
            self.anyway = kept_anyway(traced, self.on_the_way, apart) | origins
        self.forget()

    def forget(self) -> None:
        """Nothing is kept: the way back is built anew."""
        self.saved: dict[Node, Source] = {}
        self.early: list[tuple[Node, Source]] = []
        self.signs: dict[Node, Source] = {}
        self.written: dict[Node, Place] = {}
        self.rows: dict[tuple[Node, ...], Place] = {}

    def save(self, node: Node) -> Source:
        """A node in memory of its own."""
        self.saved[node] = memory = self.memory.of_steps(self._name(), self.memory.room(own_shape(node)))
        return memory

    def save_factor(self, node: Node) -> Place:
        """A factor of a gradient that the way forward computes in any case."""
        self.written[unshaped(node)] = place = rows_of(self.save(node), node)
        return place

    def save_beside(self, node: Node) -> Source:
        """A node in memory of its own, or in the place that it has beside others."""
        beside = self.savable[node]
        if len(beside) == 1:
            return self.save(node)
        known = [self.saved[other].name for other in beside if other in self.saved]
        sizes = [math.prod(own_shape(other)) for other in beside]
        place = {"start": sum(sizes[: beside.index(node)]), "width": sum(sizes)}
        self.saved[node] = self.memory.of_steps(known[0] if known else self._name(), own_shape(node), **place)
        self.memory.shapes[self.saved[node].name] = (sum(sizes),)
        return self.saved[node]

    def write_early(self, nodes: list[Node]) -> Place:
        """Factors that the way forward writes when it has them, one or several side by side; nobody reads them but the
        product. Computed on the way back, they would have to be made of what is read for them alone."""
        name, shape = f"saved_factor{len({memory.name for _, memory in self.early})}", own_shape(nodes[0])
        numbers = math.prod(shape)
        for number, node in enumerate(nodes):
            beside = {"start": number * numbers, "width": len(nodes) * numbers}
            self.early.append((node, self.memory.of_steps(name, shape, **beside)))
        self.memory.shapes[name] = (len(nodes), *shape)
        place = Place(name, rows=len(nodes) * math.prod(shape[:-1]))
        if len(nodes) == 1:
            self.written[unshaped(nodes[0])] = place
        else:
            self.rows[tuple(nodes)] = place
        return place

    def sign(self, node: Node) -> Source | None:
        """Where the way forward writes whether a node is above zero."""
        if node in self.clipped and node not in self.signs:
            self.signs[node] = self.memory.of_steps(f"signs{len(self.signs)}", own_shape(node), kind="int")
        return self.signs.get(node)

    def _name(self) -> str:
        return f"saved{len({memory.name for memory in self.saved.values()})}"


class Saving(dict[Node, Source | Carry]):
    """Leaves of the way back: a dear product that is read becomes one that the way forward saves."""

    def __init__(self, kept: Kept, leaves: dict[Node, Source | Carry]) -> None:
        super().__init__(leaves)
        self.kept = kept

    def get(self, node: Node, default: Any = None) -> Any:
        kept = self.kept
        if node not in self and node in kept.savable:
            self[node] = kept.save_beside(node)
        elif node not in self and node in kept.anyway:
            whole, column = kept.anyway[node]
            if whole not in kept.saved:
                kept.save_factor(whole)
            memory = kept.saved[whole]
            self[node] = replace(memory, start=column, width=memory.numbers)
        return super().get(node, default)
