"""Steps of all tensors in three launches, where they lie on a GPU (`kernels.optimizers.projected`)."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnarena.kernels.optimizers import multi

if TYPE_CHECKING:
    from nnarena.optim.grouped import Grouped

Group = dict[str, Any]
State = dict[str, Tensor]  # of a parameter
TYPES = (torch.float32, torch.complex64)


def is_wanted(owner: str, group: Group, param: Tensor) -> bool:
    """Whether tensors like this one go to the kernels: if asked for, or on a GPU if nothing else is.

    RuntimeError if it is asked for and cannot be.
    """
    if group["fused"] is None:
        return param.is_cuda and group["foreach"] is None and is_possible(group, param)
    if group["fused"] and not is_possible(group, param):
        raise RuntimeError(
            f"{owner}: fused=True is for 32-bit numbers on a GPU with Triton, and not for differentiable steps."
        )
    return group["fused"]


def is_possible(group: Group, param: Tensor) -> bool:
    return param.dtype in TYPES and not group["differentiable"] and (param.is_cuda or _interpreted()) and _has_triton()


def step(optimizer: Grouped, group: Group, params: list[Tensor], states: list[State]) -> bool:
    """One step of these tensors, whose counters are already one further. False if one of them has no rows in memory."""
    known: Known | None = optimizer.tables.get(_key(optimizer, group, params))
    grads: list[Any] = [param.grad for param in params]
    if params[0].is_complex():
        grads = [grad.resolve_conj() for grad in grads]
    values = known.addresses(grads, states) if known else []
    if (
        not known or not values or values != known.table.values
    ):  # it is the first step, or something was moved or loaded
        known = _table_of(optimizer, group, params)
        if known is None:
            return False
        grads = [_like(grad, param) for grad, param in zip(grads, params, strict=True)]
        _bring_together(known, states)
        values = known.addresses(grads, states)
    known.table.point(values)
    multi.step(known.table, optimizer.rule(group), optimizer.numbers(group, params[0].device))
    return True


def adam_numbers(group: Group, lr: float | Tensor, tiny: float, ratio: float = 1.0) -> multi.Numbers:
    beta1, beta2 = group["betas"]
    return multi.Numbers(
        lr=lr,
        first=beta1,
        enter=1 - beta1,
        second=beta2,
        enter_square=1 - beta2,
        logs=(_log(beta1), _log(beta2)),
        eps=group["eps"],
        tiny=tiny,
        delta=group["delta"],
        decay=group["weight_decay"],
        ratio=ratio,
    )


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


@dataclass(frozen=True)
class Known:
    """A list of tensors whose table was made: with the tensors themselves, so that no other gets their ids."""

    params: list[Tensor]
    strides: list[tuple[int, ...]]
    names: tuple[str, ...]  # of what is kept of each
    counts: bool  # whether its steps are counted too
    table: multi.Table

    def addresses(self, grads: list[Tensor], states: list[State]) -> list[int]:
        """Of everything that belongs to a tensor, tensor after tensor; none if a gradient lies in another order.

        This is all that a step does for each tensor on the host, while the GPU waits.
        """
        found: list[int] = []
        for param, grad, state, stride in zip(self.params, grads, states, self.strides, strict=True):
            if grad.stride() != stride and not _lies_like(grad, param):
                return []
            here = param.data_ptr()
            kept = [state[name].data_ptr() for name in self.names]
            count = state["step"].data_ptr() if self.counts else here
            found += (here, grad.data_ptr(), *kept, *[here] * (multi.POINTERS - 3 - len(kept)), count)
        return found


def _key(optimizer: Grouped, group: Group, params: list[Tensor]) -> tuple[Any, ...]:
    """What a table is made for: these tensors, and what their options say of them."""
    options = group["delta"] > 0, group.get("project"), optimizer.keeps(group)
    return (*map(id, params), optimizer.population_dims, *options)


def _table_of(optimizer: Grouped, group: Group, params: list[Tensor]) -> Known | None:
    """The table of these tensors, made once for where they lie; none if they are not rows in memory."""
    key, strides = _key(optimizer, group, params), [param.stride() for param in params]
    known = optimizer.tables.get(key)
    if known is None or known.strides != strides:
        shapes = [_shape(optimizer, group, param) for param in params]
        if None in shapes:
            return None
        table = multi.Table([shape for shape in shapes if shape], params[0].device)
        known = optimizer.tables[key] = Known(params, strides, optimizer.keeps(group), optimizer.counts, table)
    return known


def _bring_together(known: Known, states: list[State]) -> None:
    """What was loaded from elsewhere comes to the device, and into the order, of its parameter."""
    for param, state in zip(known.params, states, strict=True):
        for name in known.names:
            state[name] = _like(state[name], param)
        if known.counts:
            state["step"] = state["step"].to(param.device)


def _shape(optimizer: Grouped, group: Group, param: Tensor) -> multi.Shape | None:
    dims = optimizer.population_dims
    is_weight = param.ndim - dims > 1
    members = math.prod(param.shape[:dims])
    rows = param.shape[dims] if is_weight else 1
    if not _is_dense(param, dims + is_weight):
        return None
    columns = param.numel() // (members * rows) * (2 if param.is_complex() else 1)
    return multi.Shape(members, rows, columns, group["delta"] > 0 and optimizer.projects(group, is_weight))


def _is_dense(param: Tensor, outer: int) -> bool:
    """Whether its numbers fill a stretch of memory, and its first dimensions are the outer ones there."""
    left = param.numel()
    for size, stride in zip(param.shape[:outer], param.stride()[:outer], strict=True):
        left //= size
        if size > 1 and stride != left:
            return False
    strides = sorted((stride, size) for size, stride in zip(param.shape, param.stride(), strict=True) if size > 1)
    room = 1
    for stride, size in strides:
        if stride != room:
            return False
        room *= size
    return True


def _like(tensor: Tensor, param: Tensor) -> Tensor:
    """With its numbers in the order in which the parameter's lie."""
    return tensor if _lies_like(tensor, param) else torch.empty_like(param).copy_(tensor)


def _lies_like(tensor: Tensor, param: Tensor) -> bool:
    """Whether the numbers of both lie in the same order; the stride of a dimension of size 1 says nothing."""
    strides = tensor.stride(), param.stride()
    return strides[0] == strides[1] or all(
        one == other or size == 1 for one, other, size in zip(*strides, param.shape, strict=True)
    )


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _interpreted() -> bool:
    """Whether Triton's kernels run on the CPU, number by number, as tests need it."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
