"""What a step computes from its input alone, taken out of the loop: one product for all steps instead of one a step.

Our cells say themselves what depends on the input only (`Recurrent.project`); where the loop is to do it all the same,
nothing is taken out. Who brings a cell that does not say it gets it here: its step is traced, and the products that no
state reaches are done before the loop, for all samples and steps at once, with ordinary gradients. What a step does to
gradients (`detach`, `no_grad`, an `autograd.Function`) leaves no trace in that: such a step stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from nnarena.core.errors import first_line
from nnarena.kernels.compiler.graph import leading_to, name_of, unreached
from nnarena.kernels.compiler.trace import CannotCompile, FlatStep, Signature

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True)
class Hoisted:
    """A step in two parts: `before` makes its inputs from what comes in, `step` does the rest."""

    before: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
    step: FlatStep


def hoist(step: FlatStep, signature: Signature) -> Hoisted | None:
    """The two parts of a step; None if it computes no product from its input alone."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        constants = [torch.empty(shape, dtype=dtype) for shape, dtype in signature.constants]
        inputs = [torch.empty(1, *shape) for shape in signature.inputs]
        state = [torch.empty(1, *shape) for shape in signature.state]

    def forward(constants: list[Tensor], inputs: list[Tensor], state: list[Tensor]) -> list[Tensor]:
        new, output = step(constants, inputs, state)
        return [*new, output]

    try:
        graph = make_fx(forward, tracing_mode="fake")(constants, inputs, state).graph
    except Exception as error:
        raise CannotCompile(f"its step cannot be traced: {type(error).__name__}: {first_line(error)}") from error
    graph.eliminate_dead_code()
    places = [node for node in graph.nodes if node.op == "placeholder"]
    counts = (len(constants), len(inputs))
    given, read, held = places[: counts[0]], places[counts[0] : sum(counts)], places[sum(counts) :]
    known = unreached(graph, set(held))  # without the state
    steady = unreached(graph, {*held, *read})  # without the input too
    early = known - steady
    if not any(name_of(node) in PRODUCTS for node in early):
        return None
    seam = [node for node in graph.nodes if node in early and _is_seam(node, early)]
    if any(node.meta["val"].shape[:1] != (1,) for node in seam):
        return None  # a sample that lost its own dimension cannot be told from its neighbours
    before = _part(graph, [*given, *read], seam)
    after = _part(graph, [*given, *seam, *held], list(next(n for n in graph.nodes if n.op == "output").args[0]))
    hoisted = Hoisted(_over_steps(before), _rest(after))
    return hoisted if _has_its_gradients(hoisted, step, signature) else None


def _has_its_gradients(hoisted: Hoisted, step: FlatStep, signature: Signature) -> bool:
    """Whether both parts together have the gradients of the step, of some numbers."""
    constants = [_some_numbers(shape, dtype) for shape, dtype in signature.constants]
    inputs, state = ([_some_numbers((1, *shape)) for shape in shapes] for shapes in (signature.inputs, signature.state))

    def in_parts(constants: Any, inputs: Any, state: Any) -> tuple[list[Tensor], Tensor]:
        seam = hoisted.before(constants, [tensor.unsqueeze(1) for tensor in inputs])
        return hoisted.step(constants, [tensor.squeeze(1) for tensor in seam], state)

    def slopes(way: FlatStep) -> Tensor:
        def total(learned: dict[int, Tensor], inputs: list[Tensor], state: list[Tensor]) -> Tensor:
            new, output = way([learned.get(place, each) for place, each in enumerate(constants)], inputs, state)
            return torch.stack([(part * _some_numbers(part.shape)).sum() for part in (*new, output)]).sum()

        learned = {place: each for place, each in enumerate(constants) if each.is_floating_point()}
        found = torch.func.grad(total, argnums=(0, 1, 2))(learned, inputs, state)
        return torch.cat([part.flatten() for part in pytree.tree_leaves(found)])

    try:
        with torch.inference_mode(False):
            wanted, ours = slopes(step), slopes(in_parts)
    except Exception:  # such numbers may be none that it can compute with
        return False
    size = float(wanted.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(ours, wanted, rtol=1e-3, atol=1e-4 * size, equal_nan=True)


def _some_numbers(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers between -1 and 1, all different, the same ones always; whole numbers are zeros, which index anything."""
    numbers = torch.arange(math.prod(shape), dtype=torch.float32).add(1).sin().view(tuple(shape))
    return numbers if dtype.is_floating_point else torch.zeros(tuple(shape), dtype=dtype)


def _is_seam(node: Node, early: set[Node]) -> bool:
    """A tensor, not a list of them, that something later needs."""
    return isinstance(node.meta.get("val"), Tensor) and any(user not in early for user in node.users)


def _part(graph: Graph, inputs: list[Node], outputs: list[Node]) -> GraphModule:
    """The part of a graph that leads from some nodes to others."""
    part, copies = Graph(), {}
    for number, node in enumerate(inputs):
        copies[node] = part.placeholder(f"given_{number}")
    needed = leading_to(outputs, set(inputs))
    for node in graph.nodes:
        if node in needed and node not in copies:
            copies[node] = part.node_copy(node, lambda other: copies[other])
    part.output([copies[node] for node in outputs])
    return GraphModule(torch.nn.Module(), part)


def _over_steps(part: GraphModule) -> Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]:
    """What was traced for one sample at one step, for all of them: inputs (B, T, …)."""

    def before(constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        def one(*parts: Tensor) -> tuple[Tensor, ...]:
            results = part(*constants, *(each.unsqueeze(0) for each in parts))
            return tuple(result.squeeze(0) for result in results)

        return list(torch.vmap(torch.vmap(one))(*inputs))

    return before


def _rest(part: GraphModule) -> FlatStep:
    def step(constants: Sequence[Tensor], inputs: Sequence[Tensor], held: Sequence[Tensor]) -> Any:
        *new, output = part(*constants, *inputs, *held)
        return new, output

    return step
