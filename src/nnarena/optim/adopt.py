"""A person's own optimizer: a `torch.optim.Optimizer` class, or a function of the parameters that returns one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from nnarena.core.components import Component, signature_options
from nnarena.core.errors import ArenaError


def adopt(target: Callable[..., Any]) -> Component:
    """Its first argument takes the parameters, all others are options: `my_file.py:MyOptimizer[lr=0.1]`."""
    name = getattr(target, "__name__", type(target).__name__)
    arguments = list(inspect.signature(target).parameters)
    if isinstance(target, type) and not issubclass(target, Optimizer):
        raise ArenaError(f"{name} cannot be an optimizer: a class must be a subclass of torch.optim.Optimizer.")
    if arguments[:1] != ["params"]:
        raise ArenaError(f"{name} cannot be an optimizer: its first argument must be params.")

    def build(params: Any, **options: Any) -> Optimizer:
        built = target(params, **options)
        if not isinstance(built, Optimizer):
            raise ArenaError(f"{name} gave a {type(built).__name__}; an optimizer must be a torch.optim.Optimizer.")
        return built

    options = signature_options(target, skip=arguments[:1])
    return Component("optimizer", name, target.__module__, name, inspect.getdoc(target) or "", options, target=build)
