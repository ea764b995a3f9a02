"""The two ways through a loop as functions that torch differentiates and maps.

S seeds, B batch, T steps. Every tensor here has the seeds in front; `torch.vmap` over a recurrence folds its dimension
into them, so that a population of models is one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nnarena.kernels.seeds import folded, unfolded


class Kernels(Protocol):
    """What computes a loop: `runtime.Kernels` on a GPU, `cpu.Kernels`, or `steps.Steps`, one step after the other.

    Tensors are the constants, the inputs (S, B, T, …) and the parts of the first state; memory has names.
    """

    kept: list[str]  # what the way forward writes and the way back reads

    def forward(self, tensors: Sequence[Tensor], training: bool, last: bool) -> dict[str, Tensor]:
        """Run all steps. Returns all memory by name."""
        ...

    def output(self, memory: dict[str, Tensor], last: bool) -> Tensor:
        """Of all steps, (S, B, T, …), or of the last, (S, B, 1, …)."""
        ...

    def ends(self, memory: dict[str, Tensor]) -> list[Tensor]:
        """The state after the last step."""
        ...

    def backward(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], pull: Tensor, ends: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The gradients of all tensors, None for those that have none; `pull` is of all outputs, or of the last."""
        ...


class Loop(Protocol):
    """The kernels of one cell, and how many constants, inputs and parts of a state it has."""

    counts: tuple[int, int, int]

    def of(self, tensors: Sequence[Tensor]) -> Kernels: ...


class Forward(torch.autograd.Function):
    """(loop, training, whether the last output is all, tensors…) → output, last state…, and what the way back needs."""

    @staticmethod
    def forward(loop: Loop, training: bool, last: bool, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        kernels = loop.of(tensors)
        memory = kernels.forward(tensors, training, last)
        kept = [memory[name] for name in kernels.kept] if training else []
        return (kernels.output(memory, last), *kernels.ends(memory), *kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.loop, training, _, *tensors = inputs
        state = ctx.loop.counts[2]
        kept = output[1 + state :]
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)  # else all that is kept would get a gradient of zeros, as large as itself
        if training:
            ctx.save_for_backward(*tensors, *kept)
        ctx.count = len(tensors)
        ctx.shapes = [part.shape for part in output[: 1 + state]]

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        tensors, kept = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        unused = {shape for shape, part in zip(ctx.shapes, pulls, strict=False) if part is None}
        zeros = {shape: tensors[-1].new_zeros(shape) for shape in unused}
        pull, *ends = (zeros[shape] if part is None else part for part, shape in zip(pulls, ctx.shapes, strict=False))
        gradients = Backward.apply(ctx.loop, len(kept), *tensors, *kept, pull, *ends)
        needed = ctx.needs_input_grad[3:]
        return None, None, None, *(part if wanted else None for part, wanted in zip(gradients, needed, strict=True))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], loop: Loop, training: bool, last: bool, *tensors: Tensor) -> Any:  # type: ignore[override]
        # In one piece from here on, so that the way back need not copy again what is shared; what is given twice, as
        # zeros are for the parts of a state, is one.
        whole: dict[tuple[int, int | None], Tensor] = {}
        for dim, tensor in zip(in_dims[3:], tensors, strict=True):
            if (id(tensor), dim) not in whole:
                whole[id(tensor), dim] = folded(info.batch_size, dim, tensor).contiguous()
        parts = [whole[id(tensor), dim] for dim, tensor in zip(in_dims[3:], tensors, strict=True)]
        return unfolded(info.batch_size, Forward.apply(loop, training, last, *parts))


class Backward(torch.autograd.Function):
    """The way back, as a function of its own so that `torch.vmap` folds it too."""

    @staticmethod
    def forward(loop: Loop, kept: int, *tensors: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        count = sum(loop.counts)
        given, memory = tensors[:count], tensors[count : count + kept]
        pull, *ends = tensors[count + kept :]
        return tuple(loop.of(given).backward(given, memory, pull, ends))  # None of a constant that nothing depends on

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> Any:  # type: ignore[override]
        raise RuntimeError("A fused recurrence has no second derivative: use backend='eager'.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], loop: Loop, kept: int, *tensors: Tensor) -> Any:  # type: ignore[override]
        parts = [folded(info.batch_size, dim, tensor) for dim, tensor in zip(in_dims[2:], tensors, strict=True)]
        return unfolded(info.batch_size, Backward.apply(loop, kept, *parts))  # type: ignore[arg-type]
