"""Gradients of constants: which of them the way back adds up, and which are products or sums after it.

A product over all samples and steps reads its factors from memory. Many of them lie there in any case: states, inputs,
what is saved for the way back, gradients of inputs. What does not, one of the loops writes.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from torch.fx import Node

from nnarena.kernels.compiler.compiled import Gemm, Part, Place, Total
from nnarena.kernels.compiler.graph import columns, enumerate_parts, name_of, own_shape, shape_of, summands, unshaped
from nnarena.kernels.compiler.index import axes_of
from nnarena.kernels.compiler.kept import Kept
from nnarena.kernels.compiler.kernel import Kernel, Sum
from nnarena.kernels.compiler.memory import Memory
from nnarena.kernels.compiler.partition import Outer, addends, factors, over_rows
from nnarena.kernels.compiler.places import everywhere, rows_of, stores
from nnarena.kernels.compiler.plan import THIN, Plan
from nnarena.kernels.compiler.remade import Group
from nnarena.kernels.compiler.rewrite import Reader
from nnarena.kernels.compiler.tiles import Source
from nnarena.kernels.compiler.trace import Traced


class Gradients:
    """What becomes of the gradients of constants, while the way back is built: `kernel`, read by `reader`.

    gemms    products that are left to do after the loops
    totals   sums that are
    sides    factors of these products, and the nodes that each of them holds
    origins  where it lies what factors are made of again (`remade`)
    """

    def __init__(
        self, traced: Traced, plan: Plan, groups: list[Group], kept: Kept, reader: Reader, kernel: Kernel
    ) -> None:
        self.traced, self.plan, self.kept, self.memory = traced, plan, kept, kept.memory
        self.reader, self.kernel = reader, kernel
        self.blocks = plan.rows > 1 and not plan.matrices and not plan.lanes
        self.gemms: list[Gemm] = []
        self.totals: list[Total] = []
        self.sides: list[tuple[Part, list[Node]]] = []
        apart = [place for group in groups for place in group.places]
        wanted = [
            (place, node)
            for place, node in enumerate(traced.grad_constants)
            if node is not None and name_of(node) != "zeros_like" and place not in apart
        ]
        self._settle(wanted)
        self.origins = {node: self._factor("terms", [node]) for group in groups for node in group.origins}

    def _settle(self, wanted: list[tuple[int, Node]]) -> None:
        """Sums that the program carries while there is room for them; products afterwards for the large ones.

        A block of samples has no room for sums of what is written for a product anyway: they come with it.
        """
        thin = {place: outer for place, node in wanted if (outer := self._thin(node))}
        outers = [outer for place, node in wanted if place not in thin for outer in factors(node)]
        self.read = {unshaped(side) for outer in outers for side in (outer.left, outer.right)}  # factors, as read
        for outer in thin.values():
            self._share(outer.right)
        sizes = {place: math.prod(shape_of(node)) for place, node in wanted}
        large = [sizes[place] for place, node in wanted if place not in thin and len(shape_of(node)) > 1]
        room = self.plan.held - sum(large)
        shared = self.blocks and (bool(thin) or not self.plan.held)

        def turn(each: tuple[int, Node]) -> tuple[int, int, int]:
            """The small ones first; what reads factors of others comes after them."""
            place, node = each
            return 1 if place in thin else 2 if shared and addends(node) else 0, sizes[place], place

        for place, node in sorted(wanted, key=turn):
            outers = factors(node)
            if place in thin:
                self.totals.append(Total(place, self._parts(thin[place].right), self._input(thin[place].left)))
            elif outers and sizes[place] > room:
                self.gemms += self._gemms(place, outers)
            elif totals := self._totals(place, addends(node)):
                self.totals += totals
            elif sums := sums_of(self.memory, self.reader, place, node):
                self.kernel.sums += sums
                room -= sizes[place]

    def _input(self, node: Node) -> int:
        return self.traced.inputs.index(node)

    def _thin(self, node: Node) -> Outer | None:
        """A gradient that is the product of an input of a few features with something, in a block of samples."""
        match factors(node) if self.blocks else []:
            case [Outer(left, _, turned=False, scale=1.0) as outer] if left in self.traced.inputs:
                return outer if shape_of(left)[-1] <= THIN else None
            case _:
                return None

    def _share(self, node: Node) -> None:
        """What is put together of factors that large products read is written first, so that each has its place."""
        pieces = [unshaped(piece) for _, piece in enumerate_parts(node)[1:]]
        if pieces and self.read.issuperset(pieces):
            self._factor("right", [node])

    def _totals(self, place: int, terms: list[Node]) -> list[Total]:
        """Sums of what lies in memory: of matrices always, of a block of samples if a product reads the same."""
        if self.plan.matrices:
            parts = [(Part(self._factor("terms", [term]), shape_of(term)[-1]),) for term in terms]
        elif self.blocks and all(len(own_shape(term)) == 1 and self._lies(term) for term in terms):
            parts = [self._parts(term) for term in terms]
            read = [part for gemm in self.gemms for part in gemm.sides(self.memory.shapes[f"c{gemm.constant}"])]
            read += [part for total in self.totals if total.times is not None for part in total.parts]
            if not all(any(part.within(other) for other in read) for each in parts for part in each):
                return []
        else:
            return []
        return [Total(place, each) for each in parts]

    def _gemms(self, place: int, outers: list[Outer]) -> list[Gemm]:
        """One product for all terms of a sum that are alike: their factors lie side by side.

        Terms whose factors lie in memory in any case have a product each.
        """
        alike: dict[Any, list[Outer]] = {}
        for number, outer in enumerate(outers):
            known = self._where_it_lies(outer.left) and self._where_it_lies(outer.right)
            key = (own_shape(outer.left), own_shape(outer.right), outer.turned, outer.scale, number if known else -1)
            alike.setdefault(key, []).append(outer)
        gemms = []
        for (_, _, turned, scale, _), terms in alike.items():
            left = self._factor("left", [outer.left for outer in terms])
            right = self._factor("right", [outer.right for outer in terms])
            gemms.append(Gemm(place, left, right, turned, scale))
            self.sides.append((Part(left, shape_of(terms[0].left)[-1]), [outer.left for outer in terms]))
            self.sides.append((Part(right, shape_of(terms[0].right)[-1]), [outer.right for outer in terms]))
        return gemms

    # Where factors lie

    def _lies(self, node: Node) -> bool:
        """Whether all of a node is in memory anyway."""
        if self._where_it_lies(node) or self._as_rows(node):
            return True
        pieces = enumerate_parts(node)[1:]
        return bool(pieces) and all(self._lies(piece) for _, piece in pieces)

    def _parts(self, node: Node) -> tuple[Part, ...]:
        """Where a node lies, as it is or in pieces that products read; what lies nowhere is written."""
        pieces = [piece for _, piece in enumerate_parts(node)[1:]]
        if unshaped(node) not in self.read and any(self._lies(piece) for piece in pieces):
            return tuple(part for piece in pieces for part in self._parts(piece))
        self.read.add(unshaped(node))
        place = self._where_it_lies(node) or self._as_rows(node)
        return (Part(place or self._factor("right", [node]), shape_of(node)[-1]),)

    def _as_rows(self, node: Node) -> Place | None:
        """The memory whose rows add up to a node."""
        terms = Counter(map(unshaped, summands(node)))
        return next((place for rows, place in self.kept.rows.items() if Counter(map(unshaped, rows)) == terms), None)

    def _factor(self, side: str, nodes: list[Node]) -> Place:
        """The memory that holds one factor of a product, or several side by side."""
        kept = self.kept
        if len(nodes) == 1 and (known := self._where_it_lies(nodes[0])) is not None:
            return known
        if len(nodes) == 1 and self.plan.matrices and nodes[0] in kept.on_the_way:
            return kept.save_factor(nodes[0])
        if self.plan.halves and kept.on_the_way.issuperset(nodes):
            return kept.write_early(nodes)
        name = f"{side}{sum(known.startswith(side) for known in self.memory.shapes)}"
        return self._written(name, nodes[0]) if len(nodes) == 1 else self._written_as_rows(name, nodes)

    def _written(self, name: str, node: Node) -> Place:
        """A factor that the way back writes; whoever reads a part of it finds that there, too."""
        written, memory = self.kept.written, self.memory.of_steps(name, self.memory.room(own_shape(node)))
        self.kernel.stores += stores(self.reader, self.kernel, node, memory)
        for start, part in enumerate_parts(node)[1:]:
            written.setdefault(unshaped(part), Place(name, start))
        for start, part in columns(node):
            written.setdefault(unshaped(part), rows_of(memory, part, start))
        written[unshaped(node)] = place = rows_of(memory, node)
        return place

    def _written_as_rows(self, name: str, nodes: list[Node]) -> Place:
        """Several, side by side."""
        shape = own_shape(nodes[0])
        memory = self.memory.of_steps(name, (len(nodes), *shape))
        self.kept.rows[tuple(nodes)] = place = Place(name, rows=len(nodes) * math.prod(shape[:-1]))
        for number, node in enumerate(nodes):
            self.kernel.stores += stores(self.reader, self.kernel, node, memory, number)
        return place

    def _where_it_lies(self, node: Node) -> Place | None:
        """The memory that holds a node anyway; its numbers, in whatever shape."""
        if shape_of(node)[0] == 1:
            for place, gradient in enumerate(self.traced.grad_inputs):
                for start, part in enumerate_parts(gradient):
                    if unshaped(part) is unshaped(node):
                        return Place(f"du{place}", start)
        same, rows = unshaped(node), math.prod(own_shape(node)[:-1])
        if same in self.traced.state:
            return Place(f"hist{self.traced.state.index(same)}", rows=rows)
        for savable in self.kept.savable if self.plan.matrices else ():
            memory = self.reader.leaves.get(savable) if same is unshaped(savable) else None
            if isinstance(memory, Source):
                return rows_of(memory, savable, memory.start)
        return self.kept.written.get(same)


def sums_of(memory: Memory, reader: Reader, place: int, node: Node) -> list[Sum]:
    """The gradient of a constant as what every program adds up step by step; nothing if all of it is zero."""
    source = Source(f"dc{place}", shape_of(node), rows=False, time=False)
    sums = everywhere(
        reader, source.shape, lambda index: Sum(source, index, over_rows(reader, node, index), axes_of(index))
    )
    if not any(total.terms for total in sums):
        return []
    memory.shapes[source.name] = source.shape
    return sums
