"""From a traced step to two kernels: the loop over time forward, and the loop back.

Memory, by name:
    c0 …       constants                               u0 …       inputs of every step
    start0 …   the first state                         hist0 …    the state before every step, and after the last
    output     of every step                           saved0 …   what the way back needs and does not compute again
    pull       the gradient of every output            end0 …     that of the last state
    du0 …      gradients of the inputs                 dstart0 …  of the first state
    dc0 …      of the constants, one part a program    left0 …, right0 …   factors of those that are products
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Node

from nnarena.kernels.emit import Held, Kernel, Store, Sum, arguments, axes_of, emit, needed_tiles
from nnarena.kernels.index import Affine, Axis, Factor, Index, Straddle
from nnarena.kernels.plan import SAVED, Plan, warps_for
from nnarena.kernels.rewrite import VIEWS, NeedCut, Reader, name_of, shape_of
from nnarena.kernels.tiles import Carry, Program, Ref, Source, Value
from nnarena.kernels.trace import CannotCompile, Signature, Traced


@dataclass(frozen=True)
class Gemm:
    """A gradient of a constant that is one product over all samples and steps: scale · leftᵀ · right, or that
    transposed."""

    constant: int
    left: str
    right: str
    turned: bool
    scale: float


@dataclass(frozen=True)
class Compiled:
    """The text of both kernels, and the memory they work on: shapes of one sample at one step, by name."""

    forward: str
    inference: str
    backward: str
    forward_arguments: list[str]
    inference_arguments: list[str]
    backward_arguments: list[str]
    shapes: dict[str, tuple[int, ...]]
    output: str  # where the output lies: in memory of its own, or in the history of a part of the state
    gemms: list[Gemm]
    plan: Plan
    warps: tuple[int, int, int]  # of the three kernels


def compile_step(traced: Traced, signature: Signature, plan: Plan) -> Compiled:
    return Builder(traced, signature, plan).build()


class Builder:
    def __init__(self, traced: Traced, signature: Signature, plan: Plan) -> None:
        self.traced, self.signature, self.plan = traced, signature, plan
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.saved: dict[Node, Source] = {}
        self.written: dict[Node, str] = {}  # factors of gradients that were written for one product already
        self.forward_nodes = _without(traced.graph, {*traced.pull_state, traced.pull_output})
        self.savable = self._savable() if plan.save else set()
        same = [part for part, node in enumerate(traced.new_state) if node is traced.output]
        self.output = f"hist{same[0]}" if same else "output"
        shapes = self.shapes
        shapes |= {f"c{i}": shape for i, (shape, _) in enumerate(signature.constants)}
        shapes |= {f"u{i}": shape for i, shape in enumerate(signature.inputs)}
        for name in ("start", "hist", "end", "dstart"):
            shapes |= {f"{name}{i}": shape for i, shape in enumerate(signature.state)}
        shapes["output"] = shapes["pull"] = shape_of(traced.output)[1:]

    def build(self) -> Compiled:
        backward, gemms = self._settled(self._backward)
        forward = self._settled(lambda cuts: self._forward(cuts, training=True))
        inference = self._settled(lambda cuts: self._forward(cuts, training=False))
        kernels: tuple[Kernel, ...] = (forward, inference, backward)
        for kernel in kernels:
            kernel.plan = replace(kernel.plan, warps=warps_for(needed_tiles(kernel), self.plan.rows, self.plan.warps))
        warps = tuple(kernel.plan.warps for kernel in kernels)
        texts = [emit(kernel) for kernel in kernels]
        lists = [arguments(kernel) for kernel in kernels]
        return Compiled(*texts, *lists, self.shapes, self.output, gemms, self.plan, warps)  # type: ignore[arg-type]

    def _settled(self, build: Any) -> Any:
        """Build; where what is carried is read in parts, cut it there and build again."""
        cuts = {part: [set(self.plan.chop(size)) for size in shape] for part, shape in enumerate(self.signature.state)}
        while True:
            try:
                return build({part: tuple(tuple(sorted(c)) for c in each) for part, each in cuts.items()})
            except NeedCut as need:
                part = int(need.carry.name.lstrip("abcdefghijklmnopqrstuvwxyz"))
                before = len(cuts[part][need.dim])
                cuts[part][need.dim].add(need.at)
                assert len(cuts[part][need.dim]) > before

    def _savable(self) -> set[Node]:
        """Products on the way forward that are dear, each with what is added to it."""
        found = set()
        for node in self.forward_nodes:
            if node.op != "call_function" or name_of(node) not in ("mm", "addmm", "bmm"):
                continue
            if shape_of(node.args[-2])[-1] < SAVED or shape_of(node)[0] != 1:
                continue
            while True:
                users = [user for user in node.users if user in self.forward_nodes]
                if len(users) != 1 or len(node.users) != 1 or name_of(users[0]) != "add":
                    break
                if shape_of(users[0]) != shape_of(node):
                    break
                node = users[0]
            found.add(node)
        return found

    # Memory

    def _constants(self) -> dict[Node, Source | Carry]:
        kinds = {True: "bool", False: "float"}
        leaves: dict[Node, Source | Carry] = {}
        for place, (node, (shape, dtype)) in enumerate(
            zip(self.traced.constants, self.signature.constants, strict=True)
        ):
            kind: Any = "float" if dtype.is_floating_point else kinds["bool" in str(dtype)]
            if not dtype.is_floating_point and kind != "bool":
                kind = "int"
            leaves[node] = Source(f"c{place}", shape, False, False, kind=kind)
        for place, node in enumerate(self.traced.inputs):
            leaves[node] = Source(f"u{place}", self.signature.inputs[place], True, True)
        return leaves

    def _pieces(self, carry: Carry) -> list[tuple[tuple[int, ...], Index, tuple[Axis, ...]]]:
        """The pieces of what is carried: number, index and axes."""
        pieces: list[tuple[tuple[int, ...], Index, tuple[Axis, ...]]] = [((), (), ())]
        for cuts, pads in zip(carry.cuts, carry.pads, strict=True):
            longer = []
            for number, index, axes in pieces:
                for place, (begin, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
                    axis = Axis(end - begin, pads[place])
                    mine = (axis,) if axis.size > 1 else ()
                    part = Affine(begin, ((axis, 1),) if mine else ())
                    longer.append(((*number, place), (*index, part), (*axes, *mine)))
            pieces = longer
        return pieces

    def _everywhere(self, reader: Reader, shape: tuple[int, ...], body: Any, index: Index = ()) -> list[Any]:
        """`body(index)` for all of a tensor, cut where what it reads has seams."""
        if len(index) == len(shape):
            return [body(index)]
        rest = reader.over(shape[len(index)], lambda part, _: self._everywhere(reader, shape, body, (*index, part)))
        return [result for results in rest for result in results]

    def _stores(self, reader: Reader, kernel: Kernel, node: Node, source: Source) -> list[Store]:
        """A node written to memory; in the pieces in which it is computed anyway, if these are all of it."""
        needed = needed_tiles(kernel)
        places = reader.places.get(node, [])
        skip = len(shape_of(node)) - len(source.shape)
        pieces = [(index[skip:], value) for index, value in places if isinstance(value, Ref) and value.tile in needed]
        if _is_partition([index for index, _ in pieces], source.shape):
            return [Store(source, index, value) for index, value in pieces]
        # a sample that is itself several rows has no dimension of one in front
        front = (Affine(0),) if len(shape_of(node)) > len(source.shape) else ()
        return self._everywhere(
            reader, source.shape, lambda index: Store(source, index, reader.read(node, (*front, *index)))
        )

    def _after(self, reader: Reader, node: Any, carry: Carry, index: Index) -> Value:
        """A piece of what is carried, after a step; a seam in it is one of the carry."""
        try:
            return reader.read(node, (Affine(0), *index))
        except Straddle as seam:
            for dim, part in enumerate(index):
                if any(axis is seam.axis for axis, _ in part.terms):
                    raise NeedCut(carry, dim, part.offset + seam.at) from seam
            raise
        except Factor as factor:
            raise CannotCompile("what it carries from step to step is reshaped in it.") from factor

    # The two loops

    def _forward(self, cuts: dict[int, Any], *, training: bool) -> Kernel:
        traced, program = self.traced, Program(self.plan.rows)
        leaves = self._constants()
        carries = [
            Carry(f"state{part}", shape, cuts[part], _pads(cuts[part], self.plan))
            for part, shape in enumerate(self.signature.state)
        ]
        leaves |= dict(zip(traced.state, carries, strict=True))
        reader = Reader(program, leaves, self.plan.chop)
        kernel = Kernel("forward", program, self.plan, backward=False)
        for part, carry in enumerate(carries):
            history = Source(f"hist{part}", carry.shape, True, True, shift=1, extra=1)
            before = Source(f"hist{part}", carry.shape, True, True, extra=1)
            start, end = (Source(f"{name}{part}", carry.shape, True, False) for name in ("start", "end"))
            keep = training or self.output == f"hist{part}"
            for number, index, axes in self._pieces(carry):
                value = self._after(reader, traced.new_state[part], carry, index)
                kernel.held.append(
                    Held(
                        carry,
                        number,
                        (start, index),
                        value,
                        axes,
                        end=None if keep else (end, index),
                        first=(before, index) if keep else None,
                    )
                )
                if keep:
                    kernel.stores.append(Store(history, index, value))
        if self.output == "output":
            output = Source("output", self.shapes["output"], True, True)
            kernel.stores += self._stores(reader, kernel, traced.output, output)
        if training:
            for node, source in self.saved.items():
                kernel.stores += self._stores(reader, kernel, node, source)
        return kernel

    def _backward(self, cuts: dict[int, Any]) -> tuple[Kernel, list[Gemm]]:
        traced, program = self.traced, Program(self.plan.rows)
        self.saved, self.written = {}, {}
        leaves = self._constants()
        carries = []
        for part, shape in enumerate(self.signature.state):
            leaves[traced.state[part]] = Source(f"hist{part}", shape, True, True, extra=1)
            carries.append(Carry(f"pull{part}", shape, cuts[part], _pads(cuts[part], self.plan)))
            leaves[traced.pull_state[part]] = carries[-1]
        leaves[traced.pull_output] = Source("pull", self.shapes["pull"], True, True, dead=True)
        reader = Reader(program, _Saving(self, leaves), self.plan.chop)
        kernel = Kernel("backward", program, self.plan, backward=True)
        for part, carry in enumerate(carries):
            start, end = (Source(f"{name}{part}", carry.shape, True, False) for name in ("end", "dstart"))
            for number, index, axes in self._pieces(carry):
                value = self._after(reader, traced.grad_state[part], carry, index)
                kernel.held.append(Held(carry, number, (start, index), value, axes, end=(end, index)))
        for place, node in enumerate(traced.grad_inputs):
            if node is not None:
                source = Source(f"du{place}", self.signature.inputs[place], True, True)
                self.shapes[source.name] = source.shape
                kernel.stores += self._stores(reader, kernel, node, source)
        gemms = self._constant_gradients(reader, kernel)
        return kernel, gemms

    def _constant_gradients(self, reader: Reader, kernel: Kernel) -> list[Gemm]:
        gemms: list[Gemm] = []
        wanted = [
            (math.prod(shape_of(node)), place)
            for place, node in enumerate(self.traced.grad_constants)
            if node is not None and name_of(node) != "zeros_like"
        ]
        budget = self.plan.held - sum(size for size, place in wanted if len(self.signature.constants[place][0]) > 1)
        for size, place in sorted(wanted):  # the small ones first: they cost the registers least
            node: Any = self.traced.grad_constants[place]
            factors = _factors(node)
            if factors and size > budget:
                gemms += self._gemms(reader, kernel, place, factors)
                continue
            source = Source(f"dc{place}", shape_of(node), False, False)

            def add(index: Index, node: Node = node, source: Source = source) -> Sum:
                terms = [term for term in _over_rows(reader, node, index) if isinstance(term, Ref) or term != 0]
                return Sum(source, index, _alike(reader, terms), axes_of(index))

            sums = [total for total in self._everywhere(reader, source.shape, add)]
            if any(total.terms for total in sums):
                self.shapes[source.name] = source.shape
                kernel.sums += sums
                budget -= size
        return gemms

    def _gemms(self, reader: Reader, kernel: Kernel, place: int, factors: list[Outer]) -> list[Gemm]:
        gemms = []
        for outer in factors:
            names = []
            for side, node in (("left", outer.left), ("right", outer.right)):
                name = self._where_it_lies(node)
                if name is None:
                    name = f"{side}{len([known for known in self.shapes if known.startswith(side)])}"
                    shape = shape_of(node)
                    source = Source(name, shape[1:] if shape[0] == 1 else shape, True, True)
                    self.shapes[name] = source.shape
                    self.written[node] = name
                    kernel.stores += self._stores(reader, kernel, node, source)
                names.append(name)
            gemms.append(Gemm(place, names[0], names[1], outer.turned, outer.scale))
        return gemms

    def _where_it_lies(self, node: Node) -> str | None:
        """The memory that holds a node anyway."""
        for place, gradient in enumerate(self.traced.grad_inputs):
            if gradient is node and shape_of(node)[1:] == self.signature.inputs[place]:
                return f"du{place}"
        if node in self.traced.state:
            return f"hist{self.traced.state.index(node)}"
        return self.written.get(node)


def _pads(cuts: tuple[tuple[int, ...], ...], plan: Plan) -> tuple[tuple[int, ...], ...]:
    """What the pieces of what is carried are padded to: all alike where they were cut to be alike."""
    pads = []
    for bounds in cuts:
        least = bounds[1] if plan.rows > 1 and list(bounds) == plan.chop(bounds[-1]) and len(bounds) > 2 else 1
        pads.append(tuple(Axis(b - a, least).pad for a, b in zip(bounds, bounds[1:], strict=False)))
    return tuple(pads)


def _is_partition(pieces: list[Index], shape: tuple[int, ...]) -> bool:
    """Whether these indices reach every element once."""
    found: list[int] = []
    for index in pieces:
        flat, stride = [0], 1
        for part, size in zip(reversed(index), reversed(shape), strict=True):
            flat = [place + stride * part.offset for place in flat]
            for axis, step in part.terms:
                flat = [place + stride * step * number for place in flat for number in range(axis.size)]
            stride *= size
        found += flat
    return len(found) == math.prod(shape) and len(set(found)) == len(found)


class _Saving(dict):  # type: ignore[type-arg]
    """Leaves of the way back: a dear product that is read becomes one that the way forward saves."""

    def __init__(self, builder: Builder, leaves: dict[Node, Source | Carry]) -> None:
        super().__init__(leaves)
        self.builder = builder

    def get(self, node: Node, default: Any = None) -> Any:
        if node in self.builder.savable and node not in self:
            source = Source(f"saved{len(self.builder.saved)}", shape_of(node)[1:], True, True)
            self.builder.saved[node] = source
            self.builder.shapes[source.name] = source.shape
            self[node] = source
        return super().get(node, default)


def _without(graph: Any, roots: set[Node]) -> set[Node]:
    """The nodes of a graph that none of `roots` reaches."""
    reached: set[Node] = set(roots)
    for node in graph.nodes:
        if any(arg in reached for arg in node.all_input_nodes):
            reached.add(node)
    return {node for node in graph.nodes if node not in reached and node.op != "output"}


@dataclass(frozen=True)
class Outer:
    """scale · leftᵀ · right of one sample, or that transposed."""

    left: Node
    right: Node
    turned: bool = False
    scale: float = 1.0


def _factors(node: Any) -> list[Outer]:
    """A gradient as a sum of outer products: what is one for a sample is a product of matrices over all of them."""
    match name_of(node) if node.op == "call_function" else "":
        case "t":
            return [replace(outer, turned=not outer.turned) for outer in _factors(node.args[0])]
        case "neg":
            return [replace(outer, scale=-outer.scale) for outer in _factors(node.args[0])]
        case "mul" if not isinstance(node.args[1], Node):
            return [replace(outer, scale=outer.scale * node.args[1]) for outer in _factors(node.args[0])]
        case "add" if all(isinstance(arg, Node) for arg in node.args):
            one, other = (_factors(arg) for arg in node.args)
            return one + other if one and other else []
        case "mm":
            left, right = node.args
            if left.op != "call_function" or name_of(left) not in ("t", "transpose", "permute"):
                return []
            return [Outer(left.args[0], right)]
        case _:
            return []


def _over_rows(reader: Reader, node: Node, index: Index) -> list[Value]:
    """A gradient of a constant as terms that are added up over the samples; products of matrices include the sum."""
    if node not in reader.leaves:
        name = name_of(node) if node.op == "call_function" else ""
        if name in VIEWS:
            seen = VIEWS[name](node, index)
            return [seen] if isinstance(seen, float) else _over_rows(reader, *seen)
        if name == "add" and all(isinstance(arg, Node) and shape_of(arg) == shape_of(node) for arg in node.args):
            return [term for arg in node.args for term in _over_rows(reader, arg, index)]  # type: ignore[arg-type]
        if name in ("neg", "mul") and not any(isinstance(arg, Node) for arg in node.args[1:]):
            factor = -1.0 if name == "neg" else float(node.args[1])  # type: ignore[arg-type]
            return [reader.program.map("mul", term, factor) for term in _over_rows(reader, node.args[0], index)]  # type: ignore[arg-type]
        if name == "mm":
            left, right = node.args

            def body(k: Affine, axes: tuple[Axis, ...]) -> Value:
                a, b = reader.read(left, (index[0], k)), reader.read(right, (k, index[1]))  # type: ignore[arg-type]
                rows = reader.program.batch
                both = all(isinstance(side, Ref) and rows in side.axes for side in (a, b))
                return reader.program.product(a, b, (rows, *axes) if both else axes)

            return reader.over(shape_of(left)[1], body)
    return [reader.read(node, index)]


def _alike(reader: Reader, terms: list[Value]) -> list[Value]:
    """If one term is summed over the samples already, all must be."""
    rows = reader.program.batch
    with_rows = [isinstance(term, Ref) and rows in term.axes for term in terms]
    if all(with_rows) or not any(with_rows):
        return terms
    return [
        reader.program.reduce("sum", term, (rows,)) if has else term for term, has in zip(terms, with_rows, strict=True)
    ]
