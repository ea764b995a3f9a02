"""From a traced step to kernels: the loop over time forward, and the loop back.

Memory, by name:
    c0 …       constants, c0t … transposed             u0 …       inputs of every step
    start0 …   the first state                         hist0 …    the state before every step, and after the last
    output     of every step                           saved0 …   what the way back needs and does not compute again
    pull       gradients of outputs: of every E-th     end0 …     the last state, and on the way back its gradient
    du0 …      gradients of the inputs                 dstart0 …  of the first state
    dc0 …      of the constants, one part a program    left0 …, right0 …   factors of those that are products
    terms0 …   of those that are sums over rows        size0 …    how large numbers are at most, one part a program
    aside0 …   vectors that are read in other parts than they are computed in
    signs0 …   ones where that is above zero of which the way back needs to know no more
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.fx import Node

from nnarena.kernels.compiled import Compiled, Gemm, Part, Place, Text, Total
from nnarena.kernels.emit import emit
from nnarena.kernels.emit_cpp import emit_cpp
from nnarena.kernels.emit_halves import emit_in_halves
from nnarena.kernels.graph import (
    columns,
    enumerate_parts,
    name_of,
    own_shape,
    shape_of,
    summands,
    unreached,
    unshaped,
)
from nnarena.kernels.index import Affine, Axis, Factor, Index, Straddle, axes_of
from nnarena.kernels.kernel import Held, Kernel, Size, Store, Sum, arguments, multiplied, needed_tiles
from nnarena.kernels.linear import THIN
from nnarena.kernels.partition import (
    Outer,
    addends,
    compared,
    factors,
    kept_anyway,
    over_rows,
    read_in_other_parts,
    worth_saving,
)
from nnarena.kernels.places import is_one_of, is_partition, rows_of, source_of
from nnarena.kernels.plan import NARROW, Plan, warps_for
from nnarena.kernels.remade import Group, groups, shares
from nnarena.kernels.rewrite import SINGLES, NeedCut, Reader
from nnarena.kernels.tiles import Carry, Kind, Program, Ref, Source, Value
from nnarena.kernels.trace import CannotCompile, Signature, Traced

T = TypeVar("T")
Cuts = list[list[set[int]]]  # of every part of the state, in every dimension
HERE = Affine(0)  # the one sample that was traced


def compile_step(traced: Traced, signature: Signature, plan: Plan) -> Compiled:
    """The kernels of a step. CannotCompile if there is something in it that they cannot do."""
    return Builder(traced, signature, plan).build()


class Builder:
    def __init__(self, traced: Traced, signature: Signature, plan: Plan) -> None:
        self.traced, self.signature, self.plan, self.back = traced, signature, plan, plan.way_back()
        self.saved: dict[Node, Source] = {}
        self.blocks = plan.rows > 1 and not plan.matrices and not plan.lanes
        self.early: list[tuple[Node, Source]] = []  # factors of gradients that the way forward writes
        self.written: dict[Node, Place] = {}  # factors of gradients that were written for one product already
        self.rows: dict[tuple[Node, ...], Place] = {}  # and several of them as the rows of one memory
        self.read: set[Node] = set()  # all factors of products, as they are read
        self.gemms: list[Gemm] = []
        self.totals: list[Total] = []
        self.sides: list[tuple[Part, list[Node]]] = []  # factors of large products, and what they hold
        self.sizes: dict[Part | str, str] = {}
        self.origins: dict[Node, Place] = {}  # where it lies what factors are made of again
        self.on_the_way = unreached(traced.graph, {*traced.pull_state, traced.pull_output})  # what forward computes
        self.compared = compared(traced)
        self.groups = groups(traced) if plan.remade else []
        again = {node for group in self.groups for node in group.made}  # is not written, but made again
        self.signs: dict[Node, Source] = {}  # of what is made again
        self.clipped = {node for node in again & self.on_the_way if name_of(node) == "relu"}
        saved = {
            node: beside for node, beside in worth_saving(self.on_the_way, plan).items() if unshaped(node) not in again
        }
        self.savable = {node: [node] for node in self.compared} | saved
        self.kept_anyway = self._kept_anyway() if plan.matrices else {}
        vectors = [node for node in traced.graph.nodes if node in self.compared and len(shape_of(node)) == 2]
        self.apart = [*read_in_other_parts(traced), *vectors] if plan.aside else []
        states = [*enumerate(traced.state), *enumerate(traced.new_state)]
        same = [part for part, node in states if node is traced.output and not plan.lanes]
        self.output = f"hist{same[0]}" if same else "output"
        self.shapes = {f"c{i}": shape for i, (shape, _) in enumerate(signature.constants)}
        self.shapes |= {f"u{i}": shape for i, shape in enumerate(signature.inputs)}
        for name in ("start", "hist", "end", "dstart"):
            self.shapes |= {f"{name}{i}": shape for i, shape in enumerate(signature.state)}
        self.shapes["output"] = self.shapes["pull"] = shape_of(traced.output)[1:]

    def build(self) -> Compiled:
        # the way back first: it says what the way forward has to save
        backward = self._settled(self.back, self._backward)
        forward = self._settled(self.plan, lambda cuts: self._forward(cuts, training=True))
        inference = self._settled(self.plan, lambda cuts: self._forward(cuts, training=False))
        sums = [kernel for group in self.groups for kernel in self._sums_of(group)]
        texts = [self._text(kernel) for kernel in (forward, inference, backward)]
        return Compiled(
            *texts,
            sums=[self._text(kernel) for kernel in sums],
            shapes=self.shapes,
            output=self.output,
            output_shift=int(self.output != "output" and self.traced.output in self.traced.new_state),
            repeats=self.signature.repeats,
            gemms=self.gemms,
            totals=self.totals,
            sizes=self.sizes,
            plan=self.plan,
        )

    def _kept_anyway(self) -> dict[Node, tuple[Node, int]]:
        """What the way forward keeps for gradients of weights: of those that are made again, what they are made of."""
        apart = [place for group in self.groups for place in group.places]
        origins = {node: (node, 0) for group in self.groups for node in group.origins if node in self.on_the_way}
        return kept_anyway(self.traced, self.on_the_way, apart) | origins

    def _text(self, kernel: Kernel) -> Text:
        if self.plan.lanes:
            return Text(emit_cpp(kernel), arguments(kernel), 1)
        warps = warps_for(needed_tiles(kernel), kernel.plan)
        write = emit_in_halves if multiplied(kernel) else emit
        return Text(write(kernel, warps), arguments(kernel), warps)

    def _settled(self, plan: Plan, build: Callable[[Cuts], T]) -> T:
        """Build; where what is carried is read in parts, cut it there and build again."""
        cuts = [[set(plan.chop(size)) for size in shape] for shape in self.signature.state]
        while True:
            try:
                return build(cuts)
            except NeedCut as need:
                assert need.at not in cuts[need.carry.part][need.dim]
                cuts[need.carry.part][need.dim].add(need.at)

    # Memory

    def _given(self) -> dict[Node, Source | Carry]:
        """Constants and inputs."""
        leaves: dict[Node, Source | Carry] = {}
        for place, (shape, dtype) in enumerate(self.signature.constants):
            source = Source(f"c{place}", shape, rows=False, time=False, kind=_kind(dtype))
            leaves[self.traced.constants[place]] = source
        for place, node in enumerate(self.traced.inputs):
            leaves[node] = self._of_steps(f"u{place}", self.signature.inputs[place], every=self.signature.repeats)
        return leaves

    def _of_steps(self, name: str, shape: tuple[int, ...], **more: Any) -> Source:
        """Memory that every sample has at every step."""
        self.shapes[name] = shape
        return Source(name, shape, rows=True, time=True, **more)

    def _room(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of memory for a matrix: its rows begin at even places, so that two numbers are read at a time."""
        *rows, width = shape or (1,)
        even = self.plan.matrices and rows and width > 1
        return (*rows, width + width % 2) if even else shape

    def _of_samples(self, name: str, part: int) -> Source:
        """Memory that every sample has once, for a part of the state."""
        return Source(f"{name}{part}", self.signature.state[part], rows=True, time=False)

    def _carry(self, name: str, part: int, cuts: Cuts, plan: Plan) -> Carry:
        bounds = [tuple(sorted(each)) for each in cuts[part]]
        pads = [_pads(each, plan) for each in bounds]
        return Carry(name, part, self.signature.state[part], tuple(bounds), tuple(pads))

    def _everywhere(self, reader: Reader, shape: tuple[int, ...], body: Callable[[Index], T]) -> list[T]:
        """`body(index)` for all of a tensor, cut where what it reads has seams."""

        def inside(index: Index) -> list[T]:
            if len(index) == len(shape):
                return [body(index)]
            rest = reader.over(shape[len(index)], lambda part, _: inside((*index, part)))
            return [result for results in rest for result in results]

        return inside(())

    def _stores(
        self, reader: Reader, kernel: Kernel, node: Node, source: Source, place: int | None = None
    ) -> list[Store]:
        """A node written to memory; in the pieces in which it is computed anyway, if these are all of it.

        `place` is where it is written among several that share the memory.
        """
        shape = own_shape(node)
        front = (HERE,) if shape != shape_of(node) else ()
        where = () if place is None else (Affine(place),)
        needed = needed_tiles(kernel)
        pieces = [
            (index[len(front) :], value)
            for index, value in reader.places.get(node, [])
            if isinstance(value, Ref) and value.tile in needed
        ]
        if is_partition([index for index, _ in pieces], shape):
            return [Store(source, (*where, *index), value) for index, value in pieces]
        return self._everywhere(
            reader, shape, lambda index: Store(source, (*where, *index), reader.read(node, (*front, *index)))
        )

    # The two loops

    def _forward(self, cuts: Cuts, *, training: bool) -> Kernel:
        traced, program = self.traced, _program(self.plan)
        carries = [self._carry(f"state{part}", part, cuts, self.plan) for part in range(len(traced.state))]
        leaves = self._given() | dict(zip(traced.state, carries, strict=True))
        aside = {node: self._aside(node) for node in self.apart if node in self.on_the_way}
        reader = Reader(program, leaves, self.plan.chop, self.compared.difference(aside), aside)
        kernel = Kernel("forward", program, self.plan, backward=False)
        for part, carry in enumerate(carries):
            before, after = (self._of_steps(f"hist{part}", carry.shape, shift=shift, extra=1) for shift in (0, 1))
            keep = training or f"hist{part}" in (self.output, *(memory.name for memory in aside.values()))
            for number, index, axes in carry.pieces():
                value = _after(reader, traced.new_state[part], carry, index)
                held = Held(carry, number, (self._of_samples("start", part), index), value, axes)
                if keep:
                    held.first = (before, index)
                    kernel.stores.append(Store(after, index, value))
                if not keep or self.plan.lanes:
                    held.end = (self._of_samples("end", part), index)
                kernel.held.append(held)
        if self.output == "output":
            wanted: dict[str, Any] = {"every": "E", "last": True} if self.plan.lanes else {}
            memory = self._of_steps("output", self.shapes["output"], **wanted)
            kernel.stores += self._stores(reader, kernel, traced.output, memory)
        kernel.stores += self._laid(reader)
        for node, source in (*self.saved.items(), *self.early) if training else ():
            if node not in reader.laid:
                kernel.stores += self._stores(reader, kernel, node, source)
        for node, source in self.signs.items() if training else ():
            values = self._stores(reader, kernel, node, source)
            kernel.stores += [replace(each, value=program.map("gt", each.value, 0.0)) for each in values]
        if training:
            self._measure(reader, kernel)
            self._measure_inputs(kernel, leaves)
        return kernel

    def _backward(self, cuts: Cuts) -> Kernel:
        traced, program = self.traced, _program(self.back)
        self.saved, self.written, self.rows, self.gemms, self.totals = {}, {}, {}, [], []
        self.early, self.sides, self.sizes, self.origins, self.signs = [], [], {}, {}, {}
        carries = [self._carry(f"pull{part}", part, cuts, self.back) for part in range(len(traced.state))]
        leaves = self._given() | dict(zip(traced.pull_state, carries, strict=True))
        for part, node in enumerate(traced.state):
            leaves[node] = self._of_steps(f"hist{part}", self.signature.state[part], extra=1)
        leaves[traced.pull_output] = self._of_steps("pull", self.shapes["pull"], dead=True, every="E", last=True)
        apart = [node for node in self.apart if node not in self.on_the_way and unshaped(node) not in traced.pull_state]
        aside = {node: self._aside(node, dead=True) for node in apart}
        reader = Reader(program, Saving(self, leaves), self.back.chop, aside=aside, sign=self._sign)
        kernel = Kernel("backward", program, self.back, backward=True)
        for part, carry in enumerate(carries):
            start, end = self._of_samples("end", part), self._of_samples("dstart", part)
            for number, index, axes in carry.pieces():
                value = _after(reader, traced.grad_state[part], carry, index)
                kernel.held.append(Held(carry, number, (start, index), value, axes, end=(end, index)))
        for place, node in enumerate(traced.grad_inputs):
            if node is not None:
                memory = self._of_steps(f"du{place}", self.signature.inputs[place])
                kernel.stores += self._stores(reader, kernel, node, memory)
        self.written |= {node: Place(aside[node].name) for node in reader.laid}
        self._constant_gradients(reader, kernel)
        kernel.stores += self._laid(reader)
        self._measure(reader, kernel)
        return kernel

    def _sums_of(self, group: Group) -> list[Kernel]:
        """The kernels that add up the gradients of a group."""
        plan, traced = self.plan.way_across(), self.traced
        program = _program(plan)
        leaves = self._given() | {node: self._read_again(node) for node in group.origins}
        for part, node in enumerate(traced.state):
            leaves[node] = self._of_steps(f"hist{part}", self.signature.state[part], extra=1)
        reader = Reader(program, leaves, plan.chop)
        gradients = [(place, node) for place in group.places if (node := traced.grad_constants[place])]
        sums = [each for place, node in gradients for each in self._sums(reader, place, node)]
        return [Kernel("sums", program, plan, backward=False, sums=share, apart=True) for share in shares(sums)]

    def _sign(self, node: Node) -> Source | None:
        """Where the way forward writes whether a node is above zero."""
        if node in self.clipped and node not in self.signs:
            self.signs[node] = self._of_steps(f"signs{len(self.signs)}", own_shape(node), kind="int")
        return self.signs.get(node)

    def _read_again(self, node: Node) -> Source:
        """Where a node lies. What the way back writes is zero for rows without a sample."""
        place = self.origins[node]
        return source_of(place, node, math.prod(self.shapes[place.name]), dead=node not in self.on_the_way)

    def _aside(self, node: Node, **more: Any) -> Source:
        """Where a vector is laid aside: where it is kept anyway, or memory of its own."""
        if (state := unshaped(node)) in self.traced.state:
            return self._of_steps(f"hist{self.traced.state.index(state)}", own_shape(node), extra=1)
        return self.saved.get(node) or self._of_steps(f"aside{self.apart.index(node)}", own_shape(node), **more)

    def _laid(self, reader: Reader) -> list[Store]:
        """What a reader wants to be laid aside, written down."""
        return [Store(reader.aside[node], *piece) for node, pieces in reader.laid.items() for piece in pieces]

    def _measure(self, reader: Reader, kernel: Kernel) -> None:
        """What a block multiplies by weights is measured anyway; of factors that are such, the largest size is kept."""
        tiles = multiplied(kernel)
        found = [part for part, nodes in self.sides if all(is_one_of(tiles, reader, node) for node in nodes)]
        if found:
            name = self._measured(kernel)
            self.sizes |= dict.fromkeys(found, name)

    def _measure_inputs(self, kernel: Kernel, inputs: dict[Node, Source | Carry]) -> None:
        """Inputs of a few features that a factor is multiplied with, if its size is known, too."""
        for times in {total.times for total in self.totals if total.times is not None and self.sizes}:
            memory = inputs[self.traced.inputs[times]]
            assert isinstance(memory, Source)
            self.sizes[memory.name] = self._measured(kernel, memory)

    def _measured(self, kernel: Kernel, of: Source | None = None) -> str:
        """Memory for a size that a kernel writes."""
        name = f"size{len(set(self.sizes.values()))}"
        self.shapes[name] = ()
        kernel.sizes.append(Size(Source(name, (), rows=False, time=False), of))
        return name

    def _constant_gradients(self, reader: Reader, kernel: Kernel) -> None:
        """Sums that the program carries while there is room for them; products afterwards for the large ones.

        A block of samples has no room for sums of what is written for a product anyway: they come with it.
        """
        apart = [place for group in self.groups for place in group.places]
        wanted = [
            (math.prod(shape_of(node)), place, node)
            for place, node in enumerate(self.traced.grad_constants)
            if node is not None and name_of(node) != "zeros_like" and place not in apart
        ]
        thin = {place: outer for _, place, node in wanted if (outer := self._thin(node))}
        outers = [outer for _, place, node in wanted if place not in thin for outer in factors(node)]
        self.read = {unshaped(side) for outer in outers for side in (outer.left, outer.right)}
        for outer in thin.values():
            self._share(reader, kernel, outer.right)
        large = [size for size, place, node in wanted if place not in thin and len(shape_of(node)) > 1]
        room = self.plan.held - sum(large)
        shared = self.blocks and (bool(thin) or not self.plan.held)

        def late(each: tuple[int, int, Node]) -> int:
            """What reads factors of others comes after them."""
            return 1 if each[1] in thin else 2 if shared and addends(each[2]) else 0

        for size, place, node in sorted(wanted, key=lambda each: (late(each), *each[:2])):
            outers = factors(node)
            if place in thin:
                parts = self._parts(reader, kernel, thin[place].right)
                self.totals.append(Total(place, parts, self.traced.inputs.index(thin[place].left)))
            elif outers and size > room:
                self.gemms += self._gemms(reader, kernel, place, outers)
            elif totals := self._totals(reader, kernel, place, addends(node)):
                self.totals += totals
            elif sums := self._sums(reader, place, node):
                kernel.sums += sums
                room -= size
        for node in (node for group in self.groups for node in group.origins):
            self.origins[node] = self._factor(reader, kernel, "terms", [node])

    def _totals(self, reader: Reader, kernel: Kernel, place: int, terms: list[Node]) -> list[Total]:
        """Sums of what lies in memory: of matrices always, of a block of samples if a product reads the same."""
        if self.plan.matrices:
            parts = [(Part(self._factor(reader, kernel, "terms", [term]), shape_of(term)[-1]),) for term in terms]
        elif self.blocks and all(len(own_shape(term)) == 1 and self._lies(reader, term) for term in terms):
            parts = [self._parts(reader, kernel, term) for term in terms]
            read = [part for gemm in self.gemms for part in gemm.sides(self.shapes[f"c{gemm.constant}"])]
            read += [part for total in self.totals if total.times is not None for part in total.parts]
            if not all(any(part.within(other) for other in read) for each in parts for part in each):
                return []
        else:
            return []
        return [Total(place, each) for each in parts]

    def _sums(self, reader: Reader, place: int, node: Node) -> list[Sum]:
        """What every program adds up step by step; nothing if all of it is zero."""
        source = Source(f"dc{place}", shape_of(node), rows=False, time=False)
        sums = self._everywhere(
            reader,
            source.shape,
            lambda index: Sum(source, index, over_rows(reader, node, index), axes_of(index)),
        )
        if not any(total.terms for total in sums):
            return []
        self.shapes[source.name] = source.shape
        return sums

    def _thin(self, node: Node) -> Outer | None:
        """A gradient that is the product of an input of a few features with something, in a block of samples."""
        match factors(node) if self.blocks else []:
            case [Outer(left, _, turned=False, scale=1.0) as outer] if left in self.traced.inputs:
                return outer if shape_of(left)[-1] <= THIN else None
            case _:
                return None

    def _share(self, reader: Reader, kernel: Kernel, node: Node) -> None:
        """What is put together of factors that large products read is written first, so that each has its place."""
        pieces = [unshaped(piece) for _, piece in enumerate_parts(node)[1:]]
        if pieces and self.read.issuperset(pieces):
            self._factor(reader, kernel, "right", [node])

    def _lies(self, reader: Reader, node: Node) -> bool:
        """Whether all of a node is in memory anyway."""
        if self._where_it_lies(reader, node) or self._as_rows(node):
            return True
        pieces = enumerate_parts(node)[1:]
        return bool(pieces) and all(self._lies(reader, piece) for _, piece in pieces)

    def _parts(self, reader: Reader, kernel: Kernel, node: Node) -> tuple[Part, ...]:
        """Where a node lies, as it is or in pieces that products read; what lies nowhere is written."""
        pieces = [piece for _, piece in enumerate_parts(node)[1:]]
        if unshaped(node) not in self.read and any(self._lies(reader, piece) for piece in pieces):
            return tuple(part for piece in pieces for part in self._parts(reader, kernel, piece))
        self.read.add(unshaped(node))
        place = self._where_it_lies(reader, node) or self._as_rows(node)
        return (Part(place or self._factor(reader, kernel, "right", [node]), shape_of(node)[-1]),)

    def _as_rows(self, node: Node) -> Place | None:
        """The memory whose rows add up to a node."""
        terms = Counter(map(unshaped, summands(node)))
        return next((place for rows, place in self.rows.items() if Counter(map(unshaped, rows)) == terms), None)

    def _gemms(self, reader: Reader, kernel: Kernel, place: int, outers: list[Outer]) -> list[Gemm]:
        """One product for all terms of a sum that are alike: their factors lie side by side.

        Terms whose factors lie in memory in any case have a product each.
        """
        alike: dict[Any, list[Outer]] = {}
        for number, outer in enumerate(outers):
            known = self._where_it_lies(reader, outer.left) and self._where_it_lies(reader, outer.right)
            key = (own_shape(outer.left), own_shape(outer.right), outer.turned, outer.scale, number if known else -1)
            alike.setdefault(key, []).append(outer)
        gemms = []
        for (_, _, turned, scale, _), terms in alike.items():
            left = self._factor(reader, kernel, "left", [outer.left for outer in terms])
            right = self._factor(reader, kernel, "right", [outer.right for outer in terms])
            gemms.append(Gemm(place, left, right, turned, scale))
            self.sides.append((Part(left, shape_of(terms[0].left)[-1]), [outer.left for outer in terms]))
            self.sides.append((Part(right, shape_of(terms[0].right)[-1]), [outer.right for outer in terms]))
        return gemms

    def _factor(self, reader: Reader, kernel: Kernel, side: str, nodes: list[Node]) -> Place:
        """The memory that holds one factor of a product, or several side by side."""
        if len(nodes) == 1 and (known := self._where_it_lies(reader, nodes[0])) is not None:
            return known
        if len(nodes) == 1 and self.plan.matrices and nodes[0] in self.on_the_way:
            return self._saved_for_later(nodes[0])
        if self.plan.halves and self.on_the_way.issuperset(nodes):
            return self._written_early(nodes)
        name, shape = f"{side}{sum(known.startswith(side) for known in self.shapes)}", own_shape(nodes[0])
        if len(nodes) == 1:
            memory = self._of_steps(name, self._room(shape))
            kernel.stores += self._stores(reader, kernel, nodes[0], memory)
            for start, part in enumerate_parts(nodes[0])[1:]:
                self.written.setdefault(unshaped(part), Place(name, start))
            for start, part in columns(nodes[0]):
                self.written.setdefault(unshaped(part), rows_of(memory, part, start))
            self.written[unshaped(nodes[0])] = place = rows_of(memory, nodes[0])
            return place
        place = Place(name, rows=len(nodes) * math.prod(shape[:-1]))
        memory = self._of_steps(name, (len(nodes), *shape))
        self.rows[tuple(nodes)] = place
        for number, node in enumerate(nodes):
            kernel.stores += self._stores(reader, kernel, node, memory, number)
        return place

    def _saved_for_later(self, node: Node) -> Place:
        """A factor that the way forward computes in any case, and writes."""
        self.saved[node] = memory = self._of_steps(self._name_for_saved(), self._room(own_shape(node)))
        self.written[unshaped(node)] = place = rows_of(memory, node)
        return place

    def _written_early(self, nodes: list[Node]) -> Place:
        """Factors that the way forward writes when it has them, one or several side by side; nobody reads them but the
        product. Computed on the way back, they would have to be made of what is read for them alone."""
        name, shape = f"saved_factor{len({memory.name for _, memory in self.early})}", own_shape(nodes[0])
        numbers = math.prod(shape)
        for number, node in enumerate(nodes):
            beside = {"start": number * numbers, "width": len(nodes) * numbers}
            self.early.append((node, self._of_steps(name, shape, **beside)))
        self.shapes[name] = (len(nodes), *shape)
        place = Place(name, rows=len(nodes) * math.prod(shape[:-1]))
        if len(nodes) == 1:
            self.written[unshaped(nodes[0])] = place
        else:
            self.rows[tuple(nodes)] = place
        return place

    def _name_for_saved(self) -> str:
        return f"saved{len({memory.name for memory in self.saved.values()})}"

    def _where_it_lies(self, reader: Reader, node: Node) -> Place | None:
        """The memory that holds a node anyway; its numbers, in whatever shape."""
        if shape_of(node)[0] == 1:
            for place, gradient in enumerate(self.traced.grad_inputs):
                for start, part in enumerate_parts(gradient):
                    if unshaped(part) is unshaped(node):
                        return Place(f"du{place}", start)
        same, rows = unshaped(node), math.prod(own_shape(node)[:-1])
        if same in self.traced.state:
            return Place(f"hist{self.traced.state.index(same)}", rows=rows)
        for savable in self.savable if self.plan.matrices else ():
            memory = reader.leaves.get(savable) if same is unshaped(savable) else None
            if isinstance(memory, Source):
                return rows_of(memory, savable, memory.start)
        return self.written.get(same)


class Saving(dict[Node, Source | Carry]):
    """Leaves of the way back: a dear product that is read becomes one that the way forward saves."""

    def __init__(self, builder: Builder, leaves: dict[Node, Source | Carry]) -> None:
        super().__init__(leaves)
        self.builder = builder

    def get(self, node: Node, default: Any = None) -> Any:
        builder = self.builder
        if node not in self and node in builder.savable:
            builder.saved[node] = self[node] = self._memory(node)
        elif node not in self and node in builder.kept_anyway:
            whole, column = builder.kept_anyway[node]
            if whole not in builder.saved:
                builder._saved_for_later(whole)
            memory = builder.saved[whole]
            self[node] = replace(memory, start=column, width=memory.numbers)
        return super().get(node, default)

    def _memory(self, node: Node) -> Source:
        """Memory of its own, or the place that it has beside others."""
        builder, beside = self.builder, self.builder.savable[node]
        if len(beside) == 1:
            return builder._of_steps(builder._name_for_saved(), builder._room(own_shape(node)))
        known = [builder.saved[other].name for other in beside if other in builder.saved]
        sizes = [math.prod(own_shape(other)) for other in beside]
        place = {"start": sum(sizes[: beside.index(node)]), "width": sum(sizes)}
        memory = builder._of_steps(known[0] if known else builder._name_for_saved(), own_shape(node), **place)
        builder.shapes[memory.name] = (memory.width,)
        return memory


def _program(plan: Plan) -> Program:
    # One sample's threads that hold its weights and their gradients have no registers for what is used twice.
    afresh = plan.rows == 1 and plan.held > 0
    return Program(plan.rows, plan.alone or plan.warps == 1, units=not plan.lanes, afresh=afresh)


def _after(reader: Reader, node: Any, carry: Carry, index: Index) -> Value:
    """A piece of what is carried, after a step; a seam in it is one of the carry."""
    try:
        return reader.read(node, (HERE, *index))
    except Straddle as seam:
        for dim, part in enumerate(index):
            if any(axis is seam.axis for axis, _ in part.terms):
                raise NeedCut(carry, dim, part.offset + seam.at) from seam
        raise
    except Factor as factor:
        for dim, part in enumerate(index):
            if any(axis is factor.axis and axis.size <= SINGLES for axis, _ in part.terms):
                raise NeedCut(carry, dim, part.offset + 1) from factor
        raise CannotCompile("what it carries from step to step is reshaped in it.") from factor


def _pads(bounds: tuple[int, ...], plan: Plan) -> tuple[int, ...]:
    """What the pieces of what is carried are padded to: all alike, or wide enough, where a block was cut."""
    several = plan.rows > 1 and len(bounds) > 2 and list(bounds) == plan.chop(bounds[-1])
    least = 1 if not several else max(bounds[:2]) if plan.alike else NARROW
    return tuple(Axis(end - begin, least).pad for begin, end in itertools.pairwise(bounds))


def _kind(dtype: torch.dtype) -> Kind:
    if dtype == torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"
