"""Steps of all tensors in three launches, where they lie on a GPU (`kernels.projected`)."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnarena.kernels import multi

if TYPE_CHECKING:
    from nnarena.optim.grouped import Grouped

Group = dict[str, Any]
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


def step(optimizer: Grouped, group: Group, params: list[Tensor]) -> bool:
    """One step of these tensors, whose counters are already one further. False if one of them has no rows in memory."""
    table = _table(optimizer, group, params)
    if table is None:
        return False
    grads = [_like(param.grad.resolve_conj(), param) for param in params]  # type: ignore[union-attr]
    values = _addresses(optimizer, group, params, grads)
    if values != table.values:  # it is the first step, or something was moved or loaded
        _bring_together(optimizer, group, params)
        values = _addresses(optimizer, group, params, grads)
    table.point(values)
    multi.step(table, optimizer.rule(group), optimizer.numbers(group, params[0].device))
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


def _table(optimizer: Grouped, group: Group, params: list[Tensor]) -> multi.Table | None:
    """The table of these tensors, made once; none if they are not rows in memory."""
    key = (*map(id, params), optimizer.population_dims, group["delta"] > 0, group.get("project"))
    if key not in optimizer.tables or optimizer.tables[key][0] != [param.stride() for param in params]:
        shapes = [_shape(optimizer, group, param) for param in params]
        found = None if None in shapes else multi.Table([shape for shape in shapes if shape], params[0].device)
        # with the tensors, so that no other gets their ids
        optimizer.tables[key] = [param.stride() for param in params], params, found
    return optimizer.tables[key][-1]


def _addresses(optimizer: Grouped, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[int]:
    """Of everything that belongs to a tensor, tensor after tensor."""
    names, found = optimizer.keeps(group), []
    for param, grad in zip(params, grads, strict=True):
        state, here = optimizer.state[param], param.data_ptr()
        kept = [state[name].data_ptr() for name in names]
        count = state["step"].data_ptr() if optimizer.counts else here
        found += [here, grad.data_ptr(), *kept, *[here] * (multi.POINTERS - 3 - len(kept)), count]
    return found


def _bring_together(optimizer: Grouped, group: Group, params: list[Tensor]) -> None:
    """What was loaded from elsewhere comes to the device, and into the order, of its parameter."""
    for param in params:
        state = optimizer.state[param]
        for name in optimizer.keeps(group):
            state[name] = _like(state[name], param)
        if optimizer.counts:
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
