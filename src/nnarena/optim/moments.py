"""Adam's running means, for lists of tensors.

m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   m̂ = m/(1 − β₁ᵗ),   v̂ = v/(1 − β₂ᵗ)
"""

# torch's optimizers are written with torch._foreach_…, which it does not export and types too narrowly.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nnarena.optim.grouped import Batch, Group

Factors = list[Any]  # a number or a tensor () for each tensor of a list


def update_moments(group: Group, batch: Batch) -> None:
    """A step's gradient enters the running means, and the greatest v so far where AMSGrad keeps it."""
    beta1, beta2 = group["betas"]
    m, v = batch.kept["exp_avg"], batch.kept["exp_avg_sq"]
    torch._foreach_lerp_(m, batch.grads, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, batch.grads, batch.grads, 1 - beta2)
    if "max_exp_avg_sq" in batch.kept:
        torch._foreach_maximum_(batch.kept["max_exp_avg_sq"], v)


def denominators(group: Group, batch: Batch, eps_inside: bool = False) -> list[Tensor]:
    """√v̂ + ε, or √(v̂ + ε)."""
    v = batch.kept.get("max_exp_avg_sq", batch.kept["exp_avg_sq"])
    corrections = bias_corrections(group["betas"][1], batch.steps, group["capturable"])
    if eps_inside:
        found = torch._foreach_div(v, corrections)
        torch._foreach_add_(found, group["eps"])
        torch._foreach_sqrt_(found)
        return list(found)
    found = torch._foreach_sqrt(v)
    torch._foreach_div_(found, _roots(corrections))
    torch._foreach_add_(found, group["eps"])
    return list(found)


def step_sizes(group: Group, batch: Batch) -> Factors:
    """−η/(1 − β₁ᵗ): what m/(√v̂ + ε) is multiplied by."""
    lr = learning_rate(group, batch.params[0].device)
    corrections = bias_corrections(group["betas"][0], batch.steps, group["capturable"])
    if not group["capturable"]:
        return [-lr / correction for correction in corrections]
    sizes = torch._foreach_reciprocal(corrections)
    torch._foreach_mul_(sizes, -lr)
    return list(sizes)


def learning_rate(group: Group, device: torch.device) -> float | Tensor:
    """η: a number, or a tensor () where the parameters are."""
    lr = group["lr"]
    return lr.reshape(()).to(device) if isinstance(lr, Tensor) else lr


def bias_corrections(beta: float, steps: list[Tensor], capturable: bool) -> Factors:
    """1 − βᵗ: numbers where steps are counted on the host, tensors where they are counted on the device."""
    if not capturable:
        return [1 - beta ** step.item() for step in steps]
    # −expm1(t ln β): 1 − βᵗ itself loses digits where βᵗ is nearly 1, and counters have 32 bits
    found = torch._foreach_mul(steps, math.log(beta) if beta else -math.inf)
    torch._foreach_expm1_(found)
    torch._foreach_neg_(found)
    return list(found)


def add_scaled(params: list[Tensor], updates: list[Tensor], sizes: Factors) -> None:
    """θ ← θ + size · u; the updates are used up."""
    multiply(updates, sizes)
    torch._foreach_add_(params, updates)


def multiply(tensors: list[Tensor], factors: Any) -> None:
    """x ← factor · x: one factor for all, or for each its own. (torch._foreach_mul_ keeps no x for its gradient.)"""
    if not torch.is_grad_enabled():
        torch._foreach_mul_(tensors, factors)
        return
    for place, tensor in enumerate(tensors):
        tensor.mul_(factors[place] if isinstance(factors, (list, tuple)) else factors)


def _roots(factors: Factors) -> Factors:
    if isinstance(factors[0], Tensor):
        return list(torch._foreach_sqrt(factors))
    return [factor**0.5 for factor in factors]
