"""What happens to a gradient before the optimizer sees it: it is cut short, by its length or number by number.

    g ← g · min(1, c / ‖g‖)          clip_norm = c, ‖g‖ over all tensors of a model together
    g ← max(−c, min(c, g))           clip_value = c

All of it is arithmetic on tensors, where the gradients lie: it can be recorded in a CUDA graph. In a population every
member's gradient has its own length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.core.options import Value

EPSILON = 1e-6  # added to the length, as torch's clip_grad_norm_ does


def hold_back(optimizer: Optimizer, settings: Mapping[str, Value], population_dims: int = 0) -> Optimizer:
    """The optimizer, which from now on changes its gradients first, as `settings` say.

    Tensors have so many first dimensions that count members as `population_dims` says, 0 or 1.
    """
    norm, value = settings.get("clip_norm"), settings.get("clip_value")

    @torch.no_grad()
    def change(optimizer: Optimizer, *_: Any) -> None:
        if norm is not None:
            clip_norm(list(_with_gradients(optimizer)), norm, population_dims)
        if value is not None:
            for param in _with_gradients(optimizer):
                param.grad = param.grad.clamp(-value, value)  # type: ignore[union-attr]

    if norm is not None or value is not None:
        optimizer.register_step_pre_hook(change)
    return optimizer


def clip_norm(params: list[Tensor], most: float, population_dims: int = 0) -> None:
    """Let the gradient of all these together be no longer than `most`, for each member by itself."""
    if not params:
        return
    gradients = [_gradient(param) for param in params]
    lengths_PS = [torch.linalg.vector_norm(grad.flatten(population_dims), dim=-1) for grad in map(_rows, gradients)]
    length_S = torch.linalg.vector_norm(torch.stack([length.double() for length in lengths_PS]), dim=0)
    share_S = (most / (length_S + EPSILON)).clamp(max=1.0)
    for param, gradient in zip(params, gradients, strict=True):
        factor = share_S.view((*share_S.shape, *[1] * (gradient.ndim - population_dims))).to(gradient.dtype)
        param.grad = gradient * factor  # another tensor: a gradient may be a view of one number


def _with_gradients(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from (param for param in group["params"] if param.grad is not None)


def _gradient(param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def _rows(gradient: Tensor) -> Tensor:
    """With a dimension to sum over, also where a member has one number."""
    return gradient.unsqueeze(-1)
