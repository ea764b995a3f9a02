"""A step, over time: the definition, and whatever does the same faster.

    eager      one step after the other: the definition
    fused      the whole loop in one kernel, the way back in another (CUDA, float32)
    compiled   ten steps in one call of machine code (`chunk`; a CPU with a C++ compiler)

`auto` takes the fastest that is there. A step that cannot be in one kernel is several (`steps`); one that cannot even
be traced runs eagerly. One line in the log says why.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nnarena.kernels import chunk
from nnarena.kernels.hoist import hoist
from nnarena.kernels.trace import CannotCompile, Signature, flat_step, repeated

BACKENDS = ("auto", "native", "fused", "compiled", "eager")
Step = Callable[[Any, Any, Any], tuple[Any, Tensor]]
eager = chunk.loop
log = logging.getLogger("nnarena.kernels")
_loops: dict[Any, Any] = {}  # one cell and its sizes: its parts and its kernels, or why there are none


def run(
    step: Step, constants: Any, inputs: Any, state: Any, backend: str = "auto", repeats: int = 1, last: bool = False
) -> tuple[Tensor, Any]:
    """`step` over all inputs (B, T, …), several times each: the last outputs (B, T, …), and the last state.

    If only the `last` of all is wanted, (B, 1, …), the way back need not be told that the others have no gradient.
    """
    like = pytree.tree_leaves(inputs)[0]
    if backend == "compiled" or (backend == "auto" and chunk.worthwhile(like)):
        try:
            return fused(step, constants, inputs, state, repeats, last, on_cpu=True)
        except CannotCompile as reason:
            log.info("The steps of %s are compiled by torch: %s", step.__qualname__, reason)
        return chunk.run(_known(step, repeats), constants, inputs, state, last)
    if backend == "fused" or (backend == "auto" and can_fuse(like)):
        try:
            return fused(step, constants, inputs, state, repeats, last)
        except CannotCompile as reason:
            _tell(step, str(reason))
    return eager(repeated(step, repeats), constants, inputs, state, last)


_known = functools.cache(repeated)  # the same function for the same step, so that it is compiled once


def can_fuse(x: Tensor) -> bool:
    """Whether there is a GPU to compile for, and nobody else is tracing."""
    return x.is_cuda and x.dtype == torch.float32 and not torch.compiler.is_compiling() and has_triton()


def is_mapped() -> bool:
    """Whether we are within `torch.vmap` or another transform of torch.func."""
    return chunk.under_transform()


def wants_gradient(tensor: Tensor) -> bool:
    """`requires_grad`, of what `torch.vmap` wraps too: its tensors say no whatever is inside."""
    functorch = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad or functorch.is_gradtrackingtensor(tensor)


@functools.cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


@functools.cache
def _tell(step: Step, reason: str) -> None:
    log.warning("The steps of %s run eagerly: %s", step.__qualname__, reason)


def fused(
    step: Step, constants: Any, inputs: Any, state: Any, repeats: int = 1, last: bool = False, on_cpu: bool = False
) -> tuple[Tensor, Any]:
    """The whole loop in one kernel, and the way back in another. CannotCompile where that cannot be.

    A kernel is as long as its step: where several are taken with one input, the kernel has one and takes it more often.
    """
    from nnarena.kernels.passes import Forward

    flat_constants, constants_tree = pytree.tree_flatten(constants)
    flat_inputs, inputs_tree = pytree.tree_flatten(inputs)
    flat_state, state_tree = pytree.tree_flatten(state)
    tensors = [leaf for leaf in flat_constants if isinstance(leaf, Tensor)]
    statics = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in flat_constants]
    if any(t.is_floating_point() and t.dtype != torch.float32 for t in [*tensors, *flat_inputs, *flat_state]):
        raise CannotCompile("kernels compute in float32 only.")
    trees = (constants_tree, inputs_tree, state_tree)
    cell = (step, tuple(_key(static) for static in statics), str(trees), on_cpu)
    signature = _signature(tensors, flat_inputs, flat_state, repeats)
    parts = _once((cell, signature, "parts"), lambda: hoist(flat_step(step, trees, statics), signature))
    flat = flat_step(step, trees, statics)
    if parts is not None:
        flat, flat_inputs = parts.step, parts.before(tensors, flat_inputs)
        signature = _signature(tensors, flat_inputs, flat_state, repeats)
    loop = _once((cell, signature, "loop"), lambda: _build(step, flat, signature, on_cpu))
    everything = [*tensors, *flat_inputs, *flat_state]
    training = torch.is_grad_enabled() and any(wants_gradient(tensor) for tensor in everything)
    output, *rest = Forward.apply(loop, training, last, *(tensor.unsqueeze(0) for tensor in everything))
    ends = [part.squeeze(0) for part in rest[: len(flat_state)]]
    return output.squeeze(0), pytree.tree_unflatten(ends, state_tree)


def _signature(constants: list[Tensor], inputs: list[Tensor], state: list[Tensor], repeats: int) -> Signature:
    return Signature(
        constants=tuple((tuple(tensor.shape), tensor.dtype) for tensor in constants),
        inputs=tuple(tuple(tensor.shape[2:]) for tensor in inputs),
        state=tuple(tuple(tensor.shape[1:]) for tensor in state),
        learned=tuple(wants_gradient(tensor) for tensor in constants),
        driven=tuple(wants_gradient(tensor) for tensor in inputs),
        repeats=repeats,
    )


def _once(key: Any, make: Callable[[], Any]) -> Any:
    """What was made for this key, or the reason why it could not be."""
    if key not in _loops:
        try:
            _loops[key] = make()
        except CannotCompile as reason:
            _loops[key] = reason
    if isinstance(_loops[key], CannotCompile):
        raise _loops[key]
    return _loops[key]


def _build(step: Step, flat: Any, signature: Signature, on_cpu: bool) -> Any:
    if on_cpu:
        from nnarena.kernels.cpu import Loop
    else:
        from nnarena.kernels.runtime import Loop

    loop = Loop(flat, signature)
    if loop.reason:
        log.warning("The steps of %s are several kernels each: %s", step.__qualname__, loop.reason)
    return loop


def _key(static: tuple[Any] | None) -> Any:
    """What distinguishes a constant that is no tensor."""
    if static is None:
        return None
    value = static[0]
    if isinstance(value, functools.partial):
        return value.func, value.args, tuple(sorted(value.keywords.items()))
    return value
