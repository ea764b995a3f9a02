"""From a traced step to kernels: the loop over time forward, and the loop back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from torch.fx import Node

from nnarena.kernels.compiler.compiled import Compiled, Part, Place, Text
from nnarena.kernels.compiler.gradients import Gradients, sums_of
from nnarena.kernels.compiler.graph import own_shape, shape_of, unshaped
from nnarena.kernels.compiler.index import Axis, Factor, Index, Straddle
from nnarena.kernels.compiler.kept import Kept, Saving
from nnarena.kernels.compiler.kernel import Held, Kernel, Size, Store, multiplied
from nnarena.kernels.compiler.memory import Memory
from nnarena.kernels.compiler.partition import read_in_other_parts
from nnarena.kernels.compiler.places import HERE, is_one_of, source_of, stores
from nnarena.kernels.compiler.plan import NARROW, Plan
from nnarena.kernels.compiler.program import Program
from nnarena.kernels.compiler.remade import Group, groups, shares
from nnarena.kernels.compiler.rewrite import SINGLES, NeedCut, Reader
from nnarena.kernels.compiler.tiles import Carry, Source, Value
from nnarena.kernels.compiler.trace import CannotCompile, Signature, Traced

T = TypeVar("T")
Cuts = list[list[set[int]]]  # of every part of the state, in every dimension


def compile_step(traced: Traced, signature: Signature, plan: Plan, write: Callable[[Kernel], Text]) -> Compiled:
    """The kernels of a step, written down. CannotCompile if there is something in it that they cannot do."""
    return Builder(traced, signature, plan).build(write)


class Builder:
    """Builds the way back first: it says what the way forward has to keep (`kept`), and what is left to do after both
    (`gradients`)."""

    gradients: Gradients
    sizes: dict[Part | str, str]  # where it lies how large a factor is, or an input

    def __init__(self, traced: Traced, signature: Signature, plan: Plan) -> None:
        self.traced, self.signature, self.plan, self.back = traced, signature, plan, plan.way_back()
        self.memory = Memory(traced, signature, plan)
        self.groups = [group for group in groups(traced) if (plan.met if group.by_sample else plan.remade)]
        self.kept = Kept(self.memory, traced, plan, self.groups)
        vectors = [node for node in traced.graph.nodes if node in self.kept.compared and len(shape_of(node)) == 2]
        self.apart = [*read_in_other_parts(traced), *vectors] if plan.aside else []

    def build(self, write: Callable[[Kernel], Text]) -> Compiled:
        backward = self._settled(self.back, self._backward)
        forward = self._settled(self.plan, lambda cuts: self._forward(cuts, training=True))
        inference = self._settled(self.plan, lambda cuts: self._forward(cuts, training=False))
        sums = [kernel for group in self.groups for kernel in self._sums_of(group)]
        output = self.memory.output
        return Compiled(
            *map(write, (forward, inference, backward)),
            sums=[*map(write, sums)],
            shapes=self.memory.shapes,
            output=output,
            output_shift=int(output != "output" and self.traced.output in self.traced.new_state),
            repeats=self.signature.repeats,
            gemms=self.gradients.gemms,
            totals=self.gradients.totals,
            sizes=self.sizes,
            plan=self.plan,
        )

    def _settled(self, plan: Plan, build: Callable[[Cuts], T]) -> T:
        """Build; where what is carried is read in parts, cut it there and build again."""
        cuts = [[set(plan.chop(size)) for size in shape] for shape in self.signature.state]
        while True:
            try:
                return build(cuts)
            except NeedCut as need:
                assert need.at not in cuts[need.carry.part][need.dim]
                cuts[need.carry.part][need.dim].add(need.at)

    # The two loops

    def _forward(self, cuts: Cuts, *, training: bool) -> Kernel:
        traced, memory, program = self.traced, self.memory, _program(self.plan)
        carries = [self._carry(f"state{part}", part, cuts, self.plan) for part in range(len(traced.state))]
        leaves = memory.given() | dict(zip(traced.state, carries, strict=True))
        aside = {node: self._aside(node) for node in self.apart if node in self.kept.on_the_way}
        reader = Reader(program, leaves, self.plan.chop, self.kept.compared.difference(aside), aside)
        kernel = Kernel("forward", program, self.plan, backward=False)
        for part, carry in enumerate(carries):
            before, after = (memory.of_steps(f"hist{part}", carry.shape, shift=shift, extra=1) for shift in (0, 1))
            keep = training or f"hist{part}" in (memory.output, *(source.name for source in aside.values()))
            for number, index, axes in carry.pieces():
                value = _after(reader, traced.new_state[part], carry, index)
                held = Held(carry, number, (memory.of_samples("start", part), index), value, axes)
                if keep:
                    held.first = (before, index)
                    kernel.stores.append(Store(after, index, value))
                if not keep or self.plan.lanes:
                    held.end = (memory.of_samples("end", part), index)
                kernel.held.append(held)
        if memory.output == "output":
            wanted: dict[str, Any] = {"every": "E", "last": True} if self.plan.lanes else {}
            output = memory.of_steps("output", memory.shapes["output"], **wanted)
            kernel.stores += stores(reader, kernel, traced.output, output)
        kernel.stores += _laid(reader)
        if training:
            self._keep(reader, kernel)
            self._measure(reader, kernel)
            self._measure_inputs(kernel, leaves)
        return kernel

    def _keep(self, reader: Reader, kernel: Kernel) -> None:
        """Write what is kept."""
        for node, source in (*self.kept.saved.items(), *self.kept.early):
            if node not in reader.laid:
                kernel.stores += stores(reader, kernel, node, source)
        for node, source in self.kept.signs.items():
            for store in stores(reader, kernel, node, source):
                kernel.stores.append(Store(source, store.index, reader.program.map("gt", store.value, 0.0)))

    def _backward(self, cuts: Cuts) -> Kernel:
        traced, memory, program = self.traced, self.memory, _program(self.back)
        self.kept.forget()
        self.sizes = {}
        carries = [self._carry(f"pull{part}", part, cuts, self.back) for part in range(len(traced.state))]
        leaves = memory.given() | dict(zip(traced.pull_state, carries, strict=True)) | memory.states()
        leaves[traced.pull_output] = memory.of_steps("pull", memory.shapes["pull"], dead=True, every="E", last=True)
        there = {*self.kept.on_the_way, *traced.pull_state}
        aside = {node: self._aside(node, dead=True) for node in self.apart if not there & {node, unshaped(node)}}
        reader = Reader(program, Saving(self.kept, leaves), self.back.chop, aside=aside, sign=self.kept.sign)
        kernel = Kernel("backward", program, self.back, backward=True)
        for part, carry in enumerate(carries):
            start, end = memory.of_samples("end", part), memory.of_samples("dstart", part)
            for number, index, axes in carry.pieces():
                value = _after(reader, traced.grad_state[part], carry, index)
                kernel.held.append(Held(carry, number, (start, index), value, axes, end=(end, index)))
        for place, node in enumerate(traced.grad_inputs):
            if node is not None:
                source = memory.of_steps(f"du{place}", self.signature.inputs[place])
                kernel.stores += stores(reader, kernel, node, source)
        self.kept.written |= {node: Place(aside[node].name) for node in reader.laid}
        self.gradients = Gradients(traced, self.plan, self.groups, self.kept, reader, kernel)
        kernel.stores += _laid(reader)
        self._measure(reader, kernel)
        return kernel

    def _carry(self, name: str, part: int, cuts: Cuts, plan: Plan) -> Carry:
        bounds = [tuple(sorted(each)) for each in cuts[part]]
        pads = [_pads(each, plan) for each in bounds]
        return Carry(name, part, self.signature.state[part], tuple(bounds), tuple(pads))

    def _aside(self, node: Node, **more: Any) -> Source:
        """Where a vector is laid aside: where it is kept anyway, or memory of its own."""
        if (state := unshaped(node)) in self.traced.state:
            return self.memory.of_steps(f"hist{self.traced.state.index(state)}", own_shape(node), extra=1)
        known = self.kept.saved.get(node)
        return known or self.memory.of_steps(f"aside{self.apart.index(node)}", own_shape(node), **more)

    # After the loops

    def _sums_of(self, group: Group) -> list[Kernel]:
        """The kernels that add up the gradients of a group."""
        plan, traced = self.plan.way_across(), self.traced
        program = _program(plan, each=group.by_sample)
        again = {node: self._read_again(node) for node in group.origins}
        reader = Reader(program, self.memory.given() | again | self.memory.states(), plan.chop)
        gradients = [(place, node) for place in group.places if (node := traced.grad_constants[place])]
        sums = [each for place, node in gradients for each in sums_of(self.memory, reader, place, node)]
        return [Kernel("sums", program, plan, backward=False, sums=share, apart=True) for share in shares(sums, plan)]

    def _read_again(self, node: Node) -> Source:
        """Where a node lies. What the way back writes is zero for rows without a sample."""
        place = self.gradients.origins[node]
        numbers = math.prod(self.memory.shapes[place.name])
        return source_of(place, node, numbers, dead=node not in self.kept.on_the_way)

    # How large numbers are

    def _measure(self, reader: Reader, kernel: Kernel) -> None:
        """What a block multiplies by weights is measured anyway; of factors that are such, the largest size is kept."""
        tiles = multiplied(kernel)
        sides = self.gradients.sides
        found = [part for part, nodes in sides if all(is_one_of(tiles, reader, node) for node in nodes)]
        if found:
            name = self._measured(kernel)
            self.sizes |= dict.fromkeys(found, name)

    def _measure_inputs(self, kernel: Kernel, inputs: dict[Node, Source | Carry]) -> None:
        """Inputs of a few features that a factor is multiplied with, if its size is known, too."""
        totals = self.gradients.totals if self.sizes else []
        for times in {total.times for total in totals if total.times is not None}:
            memory = inputs[self.traced.inputs[times]]
            assert isinstance(memory, Source)
            self.sizes[memory.name] = self._measured(kernel, memory)

    def _measured(self, kernel: Kernel, of: Source | None = None) -> str:
        """Memory for a size that a kernel writes."""
        name = f"size{len(set(self.sizes.values()))}"
        self.memory.shapes[name] = ()
        kernel.sizes.append(Size(Source(name, (), rows=False, time=False), of))
        return name


def _program(plan: Plan, each: bool = False) -> Program:
    # One sample's threads that hold its weights and their gradients have no registers for what is used twice.
    afresh = plan.rows == 1 and plan.held > 0
    inner_first, upright = plan.alone or plan.warps == 1, plan.divided > 0
    return Program(plan.rows, inner_first, units=not plan.lanes, afresh=afresh, upright=upright, each=each)


def _laid(reader: Reader) -> list[Store]:
    """What a reader wants to be laid aside, written down."""
    return [Store(reader.aside[node], *piece) for node, pieces in reader.laid.items() for piece in pieces]


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
