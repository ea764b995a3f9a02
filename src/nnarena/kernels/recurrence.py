"""A step, over time: the definition, and whatever does the same faster.

    eager      one step after the other: the definition
    fused      the whole loop in one kernel, the way back in another (CUDA, float32)
    compiled   the whole loop in one function of machine code, the way back in another (a CPU, a C++ compiler, float32)

`auto` takes the fastest that is there. A step that cannot be in one kernel is several (`steps`); of one that cannot be
a function of its own, torch compiles ten at a time (`chunk`); one that cannot even be traced runs eagerly. One line in
the log says why.

What a step reads may be a `Projection`, x Wᵀ + b of all steps. It is computed before the loop, or the loop reads x
instead and projects it step by step (`takes_projection`).
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nnarena.core.workload import expected_calls
from nnarena.kernels import toolchain
from nnarena.kernels.compiler import plan
from nnarena.kernels.compiler.hoist import hoist
from nnarena.kernels.compiler.trace import CannotCompile, Signature, flat_step, repeated
from nnarena.kernels.cpu import chunk
from nnarena.kernels.launch import can_fuse
from nnarena.kernels.linear import Projection

BACKENDS = ("auto", "native", "fused", "compiled", "eager")
REPAID = 20_000  # steps, 200 calls of 100: two seconds of compiling against 0.1 ms or more that each of them saves
Step = Callable[[Any, Any, Any], tuple[Any, Tensor]]
eager = chunk.loop
log = logging.getLogger("nnarena.kernels")
_loops: dict[Any, Any] = {}  # one cell and its sizes: its parts and its kernels, or why there are none


def run(
    step: Step,
    constants: Any,
    inputs: Any,
    state: Any,
    backend: str = "auto",
    repeats: int = 1,
    last: bool = False,
    apart: bool = True,
) -> tuple[Tensor, Any]:
    """`step` over all inputs (B, T, …), several times each: the last outputs (B, T, …), and the last state.

    Inputs are tensors or projections. If only the `last` of all is wanted, (B, 1, …), the way back need not be told
    that the others have no gradient. A step whose samples are not computed `apart` cannot be one kernel.
    """
    like = _read(pytree.tree_leaves(inputs)[0])
    if backend == "compiled" or (backend == "auto" and compiling_pays(like)):
        try:
            if apart:
                return compiled(step, constants, inputs, state, repeats, last)
        except CannotCompile as reason:
            _tell(step, f"The steps of %s are not one function of machine code: {reason}")
        if backend == "compiled" or chunk.worthwhile(like):
            return chunk.run(_known(step, repeats), constants, computed(inputs), state, last)
    if backend == "fused" or (backend == "auto" and can_fuse(like)):
        try:
            return fused(step, constants, inputs, state, repeats, last)
        except CannotCompile as reason:
            _tell(step, f"The steps of %s run eagerly: {reason}")
    return eager(repeated(step, repeats), constants, computed(inputs), state, last)


def compiling_pays(x: Tensor) -> bool:
    """Whether a layer that reads x should be compiled: a CPU, a C++ compiler, and enough work ahead."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or toolchain.compiler() is None:
        return False
    return expected_calls() * x.shape[1] >= REPAID


_known = functools.cache(repeated)  # the same function for the same step, so that it is compiled once


def takes_projection(x: Tensor, backend: str) -> bool:
    """Whether a backend projects x within its loop, step by step, instead of reading what was computed before.

    A CPU does: it multiplies faster than memory brings what comes of it. A kernel does if x has a few features; unless
    somebody wants the gradient of x, for which threads would have to wait for each other.
    """
    if backend == "compiled":
        return True
    return backend == "fused" and x.shape[-1] <= plan.THIN and not wants_gradient(x)


def computed(inputs: Any) -> Any:
    """Inputs as they are, but for projections, which are computed."""
    return pytree.tree_map(lambda leaf: leaf.compute() if isinstance(leaf, Projection) else leaf, inputs)


def within(step: Step, constants: Any, inputs: Any, backend: str) -> tuple[Step, Any, Any] | None:
    """A step that projects what it reads, with its constants and inputs; None if this backend takes no projection."""
    leaves, tree = pytree.tree_flatten(inputs)
    taken = {
        place: leaf
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, Projection) and takes_projection(leaf.x, backend)
    }
    if not taken:
        return None
    maps = tuple((leaf.weight.t(), leaf.bias) for leaf in taken.values())
    read = [taken[place].x if place in taken else computed(leaf) for place, leaf in enumerate(leaves)]
    return _projecting(step, tuple(taken)), (constants, maps), pytree.tree_unflatten(read, tree)


@functools.cache
def _projecting(step: Step, places: tuple[int, ...]) -> Step:
    """`step` that is given x in some places of its input, and Wᵀ and b beside its constants."""

    @functools.wraps(step)
    def projecting(constants: Any, u: Any, state: Any) -> tuple[Any, Tensor]:
        constants, maps = constants
        leaves, tree = pytree.tree_flatten(u)
        for place, (weight, bias) in zip(places, maps, strict=True):
            x = leaves[place]
            leaves[place] = x @ weight if bias is None else torch.addmm(bias, x, weight)
        return step(constants, pytree.tree_unflatten(leaves, tree), state)

    return projecting


def _read(given: Tensor | Projection) -> Tensor:
    return given.x if isinstance(given, Projection) else given


def is_mapped() -> bool:
    """Whether we are within `torch.vmap` or another transform of torch.func."""
    return chunk.under_transform()


def wants_gradient(tensor: Tensor) -> bool:
    """`requires_grad`, of what `torch.vmap` wraps too: its tensors say no whatever is inside."""
    functorch = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad or functorch.is_gradtrackingtensor(tensor)


def copies(tensors: Iterable[Tensor]) -> int:
    """How many are computed at once: the sizes of the dimensions that `torch.vmap` hides."""
    functorch = torch._C._functorch  # type: ignore[attr-defined]
    sizes: dict[int, int] = {}
    for tensor in tensors:
        while functorch.is_functorch_wrapped_tensor(tensor):
            inside = functorch.get_unwrapped(tensor)
            if functorch.is_batchedtensor(tensor):
                sizes[functorch.maybe_get_level(tensor)] = inside.shape[functorch.maybe_get_bdim(tensor)]
            tensor = inside
    return math.prod(sizes.values())


@functools.cache
def _tell(step: Step, what: str) -> None:
    log.warning(what, step.__qualname__)


def fused(
    step: Step, constants: Any, inputs: Any, state: Any, repeats: int = 1, last: bool = False
) -> tuple[Tensor, Any]:
    """The whole loop in one kernel, and the way back in another. CannotCompile where that cannot be.

    A kernel is as long as its step: where several are taken with one input, the kernel has one and takes it more often.
    """
    call = _projecting_call(step, constants, inputs, state, repeats)
    return _passed(*(call or _call(step, constants, computed(inputs), state, repeats)), state, last)


def compiled(
    step: Step, constants: Any, inputs: Any, state: Any, repeats: int = 1, last: bool = False
) -> tuple[Tensor, Any]:
    """The same on a CPU. What depends on the input only is computed in the loop, too."""
    if not _read(pytree.tree_leaves(inputs)[0]).shape[1]:
        raise CannotCompile("there is no step to take.")
    given = within(step, constants, inputs, "compiled") or (step, constants, inputs)
    return _passed(*_call(*given, state, repeats, whole=True, on_cpu=True), state, last)


def _passed(loop: Any, tensors: list[Tensor], state: Any, last: bool) -> tuple[Tensor, Any]:
    """Through a loop, with a gradient if somebody wants one."""
    from nnarena.kernels.passes import Forward

    training = torch.is_grad_enabled() and any(wants_gradient(tensor) for tensor in tensors)
    # in one piece, once for both ways; of what is mapped, `Forward.vmap` sees to it
    whole = tensors if is_mapped() else [tensor.contiguous() for tensor in tensors]
    output, *rest = Forward.apply(loop, training, last, *(tensor.unsqueeze(0) for tensor in whole))
    parts, tree = pytree.tree_flatten(state)
    ends = [part.squeeze(0) for part in rest[: len(parts)]]
    return output.squeeze(0), pytree.tree_unflatten(ends, tree)


def _projecting_call(step: Step, constants: Any, inputs: Any, state: Any, repeats: int) -> tuple[Any, Any] | None:
    """A loop that projects what it reads; None where that does not pay.

    It does for a block of samples in every program, of which there are many: memory is what they all wait for.
    """
    if (inside := within(step, constants, inputs, "fused")) is None:
        return None
    tensors = [leaf for leaf in pytree.tree_leaves((inside, state)) if isinstance(leaf, Tensor)]
    sequences = len(_read(pytree.tree_leaves(inputs)[0])) * copies(tensors)
    if sequences < plan.MANY:
        return None
    loop, tensors = _call(*inside, state, repeats, whole=True)
    return (loop, tensors) if loop.holds_blocks(sequences, tensors[0].device) else None


def _call(
    step: Step, constants: Any, inputs: Any, state: Any, repeats: int, whole: bool = False, on_cpu: bool = False
) -> tuple[Any, list[Tensor]]:
    """The loop of a step, and the tensors that it is called with; a `whole` step stays as it is."""
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
    flat = flat_step(step, trees, statics)
    parts = None if whole else _once((cell, signature, "parts"), lambda: hoist(flat, signature))
    if parts is not None:
        flat, flat_inputs = parts.step, parts.before(tensors, flat_inputs)
        signature = _signature(tensors, flat_inputs, flat_state, repeats)
    loop = _once((cell, signature, "loop"), lambda: _build(step, flat, signature, on_cpu, quiet=whole))
    return loop, [*tensors, *flat_inputs, *flat_state]


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


def built() -> list[Any]:
    """All loops so far, and what belongs to them."""
    return list(_loops.values())


def forget() -> None:
    """All loops: who needs one again has it built again."""
    _loops.clear()


def _build(step: Step, flat: Any, signature: Signature, on_cpu: bool, quiet: bool) -> Any:
    if on_cpu:
        from nnarena.kernels.cpu.runtime import Loop
    else:
        from nnarena.kernels.gpu.runtime import Loop

    loop = Loop(flat, signature)
    if not quiet and loop.reason:
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
