"""Steps of an optimizer that moves the same few tensors again and again, with little work for the host.

torch's Adam looks through all its groups and states before every step: for a dozen small tensors on a CPU that takes
longer than the step itself. Here it looks once, and then calls the same kernel on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

Descend = Callable[[Sequence[Tensor | None]], None]


def stepper(optimizer: Optimizer, params: Sequence[Tensor]) -> Descend:
    """A function of the gradients of `params`, which are all that the optimizer moves, that takes a step.

    It stays right until somebody loads a state into the optimizer or changes its settings: then ask for another.
    """
    lean = type(optimizer) in (Adam, AdamW) and len(optimizer.param_groups) == 1
    if lean and optimizer.param_groups[0].get("fused") and all(param.device.type == "cpu" for param in params):
        return _adam(optimizer, list(params))

    def step(gradients: Sequence[Tensor | None]) -> None:
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        optimizer.step()

    return step


def _adam(optimizer: Optimizer, params: list[Tensor]) -> Descend:
    group = optimizer.param_groups[0]
    first, second = group["betas"]
    settings = {
        "lr": group["lr"],
        "beta1": first,
        "beta2": second,
        "weight_decay": group["weight_decay"],
        "eps": group["eps"],
        "amsgrad": group["amsgrad"],
        "maximize": group["maximize"],
    }
    update: Any = getattr(torch, "_fused_adamw_" if group["decoupled_weight_decay"] else "_fused_adam_")
    kept: dict[str, list[Tensor]] = {}
    counts = torch.empty(0)

    @torch.no_grad()
    def step(gradients: Sequence[Tensor | None]) -> None:
        nonlocal counts
        if not kept or any(gradient is None for gradient in gradients):
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = gradient
            optimizer.step()  # makes the state of who has a gradient
            if all(param in optimizer.state for param in params):
                counts = _count_together(optimizer, params)
                kept.update(_states(optimizer, params))
            return
        counts += 1
        update(params, gradients, kept["exp_avg"], kept["exp_avg_sq"], kept["max_exp_avg_sq"], kept["step"], **settings)

    return step


def _count_together(optimizer: Optimizer, params: list[Tensor]) -> Tensor:
    """The numbers of steps of all tensors as one tensor, of which the optimizer's are parts from now on."""
    states = [optimizer.state[param] for param in params]
    counts = torch.stack([state["step"] for state in states])
    for state, count in zip(states, counts.unbind(), strict=True):
        state["step"] = count
    return counts


def _states(optimizer: Optimizer, params: list[Tensor]) -> dict[str, list[Tensor]]:
    """The states of all tensors as lists, by name."""
    states = [optimizer.state[param] for param in params]
    names = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    return {name: [state[name] for state in states if name in state] for name in names}
