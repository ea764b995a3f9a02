"""A recurrence on the CPU in compiled chunks: ten steps are one call of machine code, forward and backward.

For what our own compiler (`cpu`) has no rule for: samples that are not computed apart, float64. An eager step of a
small cell spends most of its time between the operations: in Python, in autograd, in memory that is written only to be
read once. `torch.compile` makes a chunk of steps one function, whose neighbouring operations are one loop over the
numbers. It takes a C++ compiler and, for each cell and shape, up to a minute: `worthwhile` says whether the run repays
that. The numbers are those of the eager loop, to rounding.

B batch, T time.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nnarena.core.errors import first_line
from nnarena.core.workload import expected_calls
from nnarena.kernels import toolchain

CHUNK = 10  # steps at most: more of them compile for longer and run hardly faster
OPERATIONS = 500  # in a chunk, about: what the compiler does in half a minute
REPAID = 200_000  # steps, 2,000 calls of 100: a minute of compiling against 0.3 ms or more that each of them saves
ATTENTION = "scaled_dot_product"  # in the name of operations that torch has kernels for
# tanh x = 2 / (1 + exp(−2x)) − 1, right to 1e-7 and several times as fast as torch's, which is right to the last digit
# near zero too, and takes as long as the matrix product before it.
FAST_TANH = "cpp.use_decompose_tanh"
SHAPES = 16  # shapes of one cell that are compiled; what more there are run eagerly
# What torch's compiler saves for the way back though it could compute it again. Where a state is a matrix, as in a
# memory, that is as much as its products make: writing and reading it takes a quarter of a step or more.
SAVED = (
    "ban_recompute_used_far_apart",
    "ban_recompute_long_fusible_chains",
    "ban_recompute_materialized_backward",
)

Step = Callable[[Any, Any, Any], tuple[Any, Tensor]]
Take = Callable[..., tuple[Tensor, Any]]
log = logging.getLogger("nnarena.kernels")
_sizes: dict[Any, int] = {}
_attentive: set[Step] = set()
_tried: dict[Any, str] = {}  # cell, shapes and fixed numbers: why it is not compiled, or nothing


def worthwhile(x: Tensor) -> bool:
    """Whether a layer that reads x should take compiled chunks: a CPU, a compiler, and a long training run ahead."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    return expected_calls() * x.shape[1] >= REPAID and possible()


def possible() -> bool:
    """Whether chunks can be compiled here: there is a C++ compiler, and nothing else is tracing or batching us."""
    return not torch.compiler.is_compiling() and not under_transform() and toolchain.compiler() is not None


def under_transform() -> bool:
    """Within vmap or grad of torch.func, whose tensors a compiled function cannot read."""
    # torch has no public way to ask.
    return torch._C._functorch.peek_interpreter_stack() is not None  # type: ignore[attr-defined]


def loop(step: Step, constants: Any, projected: Any, state: Any, last: bool = False) -> tuple[Tensor, Any]:
    """One step after the other: outputs (B, T, …), or the `last` (B, 1, …), and the last state.

    `projected` is (B, T, …), or several such.
    """
    several = isinstance(projected, tuple)
    steps = zip(*(part.unbind(1) for part in projected), strict=True) if several else projected.unbind(1)
    outputs = []
    for u in steps:
        state, output = step(constants, u, state)
        outputs.append(output)
    return torch.stack(outputs[-1:] if last else outputs, 1), state


def run(
    step: Step, constants: Any, projected: Any, state: Any, last: bool = False, size: int | None = None
) -> tuple[Tensor, Any]:
    """What `loop` gives, with one compiled call for every `size` steps; what remains of them is taken one by one.

    Where compilation fails, or is known to gain nothing, one line in the log says so, and the loop is the eager one.
    """
    if not possible():
        return loop(step, constants, projected, state, last)
    several = isinstance(projected, tuple)
    parts = projected if several else (projected,)
    if size is None:
        first = tuple(part[:, 0] for part in parts)
        size = _fit(parts[0].shape[1], _size(step, constants, first if several else first[0], state))
    whole = parts[0].shape[1] // size
    # split, and not slices: the gradients of its pieces are put together once.
    chunks = list(zip(*(part.split(size, 1) for part in parts), strict=True))
    chunks = chunks if several else [chunk[0] for chunk in chunks]
    graded = torch.is_grad_enabled() and any(t.requires_grad for t in _tensors((constants, projected, state)))
    own = pytree.tree_map(functools.partial(_own, graded=graded), state)
    if not whole or _refusal(step, constants, chunks[0], own, last):
        return loop(step, constants, projected, state, last)
    outputs, state = [], own
    for place, chunk in enumerate(chunks):
        take = _compiled(step) if place < whole else loop
        output, state = take(step, constants, chunk, pytree.tree_map(_contiguous, state), last)
        outputs.append(output)
    return outputs[-1] if last else torch.cat(outputs, 1), state


def refusals() -> list[str]:
    """Why cells run eagerly though they were to be compiled, in the order in which they were tried."""
    return [reason for reason in _tried.values() if reason]


class _Count(TorchDispatchMode):
    """Counts operations, and looks out for attention."""

    count = 0
    attention = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self.attention |= ATTENTION in str(func)
        return func(*args, **(kwargs or {}))


def _fit(length: int, most: int) -> int:
    """The size of chunks that leaves the fewest steps over; not less than half of what is possible."""
    most = min(most, length)
    return min(range(most, (most - 1) // 2, -1), key=lambda size: length % size)


def _size(step: Step, constants: Any, u: Any, state: Any) -> int:
    """How many steps of a cell make a chunk at most: fewer, where one of them is long."""
    key = (step, _fixed(pytree.tree_leaves(constants)))
    if key not in _sizes:
        with torch.no_grad(), _Count() as mode:
            step(constants, u, state)
        if mode.attention:
            _attentive.add(step)
        _sizes[key] = max(1, min(CHUNK, OPERATIONS // max(mode.count, 1)))
    return _sizes[key]


def _fixed(leaves: list[Any]) -> tuple[str, ...]:
    """What is not a tensor: numbers and functions that the compiler takes for granted."""
    return tuple(repr(leaf) for leaf in leaves if not isinstance(leaf, Tensor))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _own(part: Any, graded: bool) -> Any:
    """A first state like the later ones, so that one compilation serves all: its own memory, and with a gradient."""
    if not isinstance(part, Tensor):
        return part
    part = part.clone(memory_format=torch.contiguous_format)
    return part.requires_grad_() if graded and not part.requires_grad else part


def _copy(leaf: Any) -> Any:
    """The same numbers without their history. A parameter stays one: the compiler tells them from other tensors."""
    if not isinstance(leaf, Tensor):
        return leaf
    copy = leaf.detach()
    return (
        nn.Parameter(copy, leaf.requires_grad)
        if isinstance(leaf, nn.Parameter)
        else copy.requires_grad_(leaf.requires_grad)
    )


def _contiguous(part: Any) -> Any:
    return part.contiguous() if isinstance(part, Tensor) else part


@functools.cache
def _compiled(step: Step) -> Take:
    """`loop` for one cell; options that this version of torch does not know are left out."""
    from torch._inductor import list_options  # seconds to import, so not before it is needed

    more = {"isolate_recompiles": True, "recompile_limit": SHAPES}  # a count for each cell
    known = inspect.signature(torch.compile).parameters
    options: dict[str, Any] = {FAST_TANH: True} if FAST_TANH in list_options() else {}
    more = {key: more[key] for key in more if key in known}
    return torch.compile(loop, fullgraph=True, dynamic=False, options=options, **more)


def _compiling(state: Any) -> AbstractContextManager[Any]:
    """What holds while a cell with such a state is compiled; settings that this version of torch lacks are left out."""
    from torch._functorch import config

    settings: Any = config
    wide = any(part.dim() > 2 for part in _tensors(state))
    return settings.patch({name: False for name in SAVED if wide and hasattr(config, name)})


def _refusal(step: Step, constants: Any, chunk: Any, state: Any, last: bool) -> str:
    """Compiles forward and backward for these shapes, once, on copies; says why not to use it, if there is a reason."""
    leaves, structure = pytree.tree_flatten((constants, chunk, state))
    shapes = tuple((t.shape, t.stride(), t.dtype, t.requires_grad) for t in _tensors(leaves))
    key = (step, torch.is_grad_enabled(), shapes, _fixed(leaves), last)
    if key in _tried:
        return _tried[key]

    def train() -> None:
        copies = [_copy(leaf) for leaf in leaves]
        ends = _tensors(_compiled(step)(step, *pytree.tree_unflatten(copies, structure), last))
        ends = [end for end in ends if end.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])

    _tried[key] = ""
    try:
        if step in _attentive:
            # Measured: half again as slow. Not timed here, because the same run must give the same bits every time.
            raise RuntimeError("torch's own attention is faster")
        log.info("Compiling the steps of %s for this CPU; this takes up to a minute.", step.__qualname__)
        with _compiling(state):
            train()
    except Exception as error:
        _tried[key] = f"they could not be compiled ({first_line(error)})"
    if _tried[key]:
        log.warning("The steps of %s run eagerly: %s.", step.__qualname__, _tried[key])
    return _tried[key]
