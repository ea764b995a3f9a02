"""A step, over time: the definition, and whatever does the same faster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nnarena.kernels.trace import CannotCompile, Signature, flat_step, trace

Step = Callable[[Any, Any, Any], tuple[Any, Tensor]]


def eager(step: Step, constants: Any, inputs: Any, state: Any) -> tuple[Tensor, Any]:
    """The definition: one step after the other. Inputs (B, T, …), outputs (B, T, …)."""
    leaves, tree = pytree.tree_flatten(inputs)
    outputs = []
    for parts in zip(*(leaf.unbind(1) for leaf in leaves), strict=True):
        state, output = step(constants, pytree.tree_unflatten(list(parts), tree), state)
        outputs.append(output)
    return torch.stack(outputs, 1), state


def fused(step: Step, constants: Any, inputs: Any, state: Any) -> tuple[Tensor, Any]:
    """The whole loop in one kernel, and the way back in another. CannotCompile where that cannot be."""
    from nnarena.kernels.runtime import Forward

    flat_constants, constants_tree = pytree.tree_flatten(constants)
    flat_inputs, inputs_tree = pytree.tree_flatten(inputs)
    flat_state, state_tree = pytree.tree_flatten(state)
    tensors = [leaf for leaf in flat_constants if isinstance(leaf, Tensor)]
    statics = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in flat_constants]
    signature = Signature(
        constants=tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
        inputs=tuple(tuple(tensor.shape[2:]) for tensor in flat_inputs),
        state=tuple(tuple(tensor.shape[1:]) for tensor in flat_state),
        learned=tuple(tensor.requires_grad for tensor in tensors),
        driven=tuple(tensor.requires_grad for tensor in flat_inputs),
    )
    key = (step, tuple(_key(static) for static in statics), str((constants_tree, inputs_tree, state_tree)), signature)
    if key not in _LOOPS:
        flat = flat_step(step, (constants_tree, inputs_tree, state_tree), statics)
        try:
            _LOOPS[key] = _build(flat, signature)
        except CannotCompile as reason:
            _LOOPS[key] = reason
    loop = _LOOPS[key]
    if isinstance(loop, CannotCompile):
        raise loop
    everything = [*tensors, *flat_inputs, *flat_state]
    training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in everything)
    output, *rest = Forward.apply(loop, training, *(tensor.unsqueeze(0) for tensor in everything))
    ends = [part.squeeze(0) for part in rest[: len(flat_state)]]
    return output.squeeze(0), pytree.tree_unflatten(ends, state_tree)


_LOOPS: dict[Any, Any] = {}


def _build(flat: Any, signature: Signature) -> Any:
    from nnarena.kernels.compile import compile_step
    from nnarena.kernels.plan import make_plan
    from nnarena.kernels.runtime import Loop

    traced = trace(flat, signature)
    compiled = compile_step(traced, signature, make_plan(traced))
    return Loop(compiled, len(signature.constants), len(signature.inputs), len(signature.state))


def _key(static: tuple[Any] | None) -> Any:
    """What distinguishes a constant that is no tensor."""
    if static is None:
        return None
    value = static[0]
    if isinstance(value, functools.partial):
        return value.func, value.args, tuple(sorted(value.keywords.items()))
    return value
