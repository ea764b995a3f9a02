"""From a cell's step to a graph of elementary operations: the step, and its vector-Jacobian product.

A step is traced for *one* sample, on tensors without numbers. What a program then says of one sample holds for all
of them, and what control flow could depend on numbers is found out here: it cannot be traced, and says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from nnarena.core.errors import first_line

aten = torch.ops.aten


class CannotCompile(Exception):
    """Why a cell cannot become a kernel; the reason is a sentence for the log."""


@dataclass(frozen=True)
class Signature:
    """What a step is called with: everything that decides what its kernel looks like, and nothing else.

    The step's arguments are pytrees; `constants` and `inputs` and `state` are the shapes of their tensors in order,
    without the batch dimension for inputs and state. `learned` and `driven` say which constants and inputs need a
    gradient, and `repeats` how many steps are taken with one input.
    """

    constants: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    inputs: tuple[tuple[int, ...], ...]
    state: tuple[tuple[int, ...], ...]
    learned: tuple[bool, ...]
    driven: tuple[bool, ...]
    repeats: int = 1


@dataclass(frozen=True)
class Traced:
    """One graph for both directions; its nodes that no cotangent reaches are the forward step."""

    graph: Graph
    constants: list[Node]
    inputs: list[Node]
    state: list[Node]
    pull_state: list[Node]  # the cotangents of the new state
    pull_output: Node
    new_state: list[Node]
    output: Node
    grad_constants: list[Node | None]
    grad_inputs: list[Node | None]
    grad_state: list[Node | None]


FlatStep = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], Tensor]]


def repeated(step: Callable[..., Any], times: int) -> Callable[..., Any]:
    """So many steps with one input as one step."""
    if times == 1:
        return step

    @functools.wraps(step)
    def several(constants: Any, u: Any, state: Any) -> Any:
        for _ in range(times - 1):
            state, _ = step(constants, u, state)
        return step(constants, u, state)

    return several


def flat_step(step: Callable[..., Any], trees: tuple[Any, Any, Any], statics: list[Any]) -> FlatStep:
    """`step` as a function of lists of tensors. `statics` are the constants with None where a tensor belongs."""
    constants_tree, inputs_tree, state_tree = trees

    def flat(constants: Sequence[Tensor], inputs: Sequence[Tensor], state: Sequence[Tensor]) -> tuple[list[Any], Any]:
        tensors = iter(constants)
        leaves = [next(tensors) if static is None else static[0] for static in statics]
        new, output = step(
            pytree.tree_unflatten(leaves, constants_tree),
            pytree.tree_unflatten(list(inputs), inputs_tree),
            pytree.tree_unflatten(list(state), state_tree),
        )
        return pytree.tree_leaves(new), output

    return flat


def trace(step: FlatStep, signature: Signature) -> Traced:
    """The joint graph of a step and its vector-Jacobian product. CannotCompile if there is none."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        constants = [torch.empty(shape, dtype=dtype) for shape, dtype in signature.constants]
        inputs = [torch.empty(1, *shape) for shape in signature.inputs]
        state = [torch.empty(1, *shape) for shape in signature.state]
    learned = [place for place, yes in enumerate(signature.learned) if yes]
    driven = [place for place, yes in enumerate(signature.driven) if yes]

    def joint(constants: list[Tensor], inputs: list[Tensor], state: list[Tensor], pulls: list[Tensor]) -> list[Any]:
        def forward(some: list[Tensor], more: list[Tensor], state: list[Tensor]) -> list[Tensor]:
            all_constants, all_inputs = list(constants), list(inputs)
            for place, tensor in zip(learned, some, strict=True):
                all_constants[place] = tensor
            for place, tensor in zip(driven, more, strict=True):
                all_inputs[place] = tensor
            new, output = step(all_constants, all_inputs, state)
            return [*new, output]

        chosen = [constants[place] for place in learned], [inputs[place] for place in driven]
        outputs, pull, *_ = torch.func.vjp(forward, *chosen, state)
        gradients = pull(pulls)
        return [*outputs, *(part for group in gradients for part in group)]

    with sdpa_kernel(SDPBackend.MATH):
        try:
            new, output = step(constants, inputs, state)
        except Exception as error:
            raise CannotCompile(f"its step cannot be traced: {type(error).__name__}: {first_line(error)}") from error
        wanted = [part.shape for part in state]
        if [part.shape for part in new] != wanted:
            raise CannotCompile("its state changes shape from step to step.")
        pulls = [torch.empty_like(part) for part in [*new, output]]
        try:
            graph = make_fx(joint, decompositions(), tracing_mode="fake")(constants, inputs, state, pulls).graph
        except Exception as error:
            raise CannotCompile(f"its step cannot be traced: {type(error).__name__}: {first_line(error)}") from error
    graph.eliminate_dead_code()
    return _sort_out(graph, signature, learned, driven)


def _sort_out(graph: Graph, signature: Signature, learned: list[int], driven: list[int]) -> Traced:
    """Names for the placeholders and results of the joint graph."""
    places = [node for node in graph.nodes if node.op == "placeholder"]
    results = list(next(node for node in graph.nodes if node.op == "output").args[0])
    counts = [len(signature.constants), len(signature.inputs), len(signature.state), len(signature.state)]
    groups = []
    for count in counts:
        groups.append(places[:count])
        places = places[count:]
    parts = len(signature.state)
    new_state, output, gradients = results[:parts], results[parts], results[parts + 1 :]
    grad_constants: list[Node | None] = [None] * len(signature.constants)
    grad_inputs: list[Node | None] = [None] * len(signature.inputs)
    for place, node in zip(learned, gradients, strict=False):
        grad_constants[place] = node
    for place, node in zip(driven, gradients[len(learned) :], strict=False):
        grad_inputs[place] = node
    grad_state = gradients[len(learned) + len(driven) :]
    return Traced(graph, *groups, places[0], new_state, output, grad_constants, grad_inputs, list(grad_state))  # type: ignore[arg-type]


def decompositions() -> dict[Any, Any]:
    """Everything in terms of arithmetic, products of matrices, sums and views."""
    more = [
        aten.native_layer_norm,
        aten.native_layer_norm_backward,
        aten._softmax,
        aten._softmax_backward_data,
        aten.var_mean,
        aten.softplus,
        aten.softplus_backward,
        aten.split,
        aten.split_with_sizes,
        aten.unbind,
        aten.stack,
        aten.addcmul,
        aten.baddbmm,
        aten.logsumexp,
        aten.masked_fill,
        aten.slice_backward,
        aten.select_backward,
        *(aten.silu, aten.silu_backward, aten.gelu, aten.gelu_backward, aten.elu, aten.elu_backward),
        *(aten.leaky_relu, aten.leaky_relu_backward, aten.hardtanh, aten.hardtanh_backward, aten.hardsigmoid),
        *(aten.hardsigmoid_backward, aten.log_sigmoid_forward, aten.log_sigmoid_backward, aten.addcdiv, aten.lerp),
    ]
    keep = {aten.index_select.default, aten.addmm.default}
    table = core_aten_decompositions() | get_decompositions(more)
    return {op: rule for op, rule in table.items() if op not in keep}
