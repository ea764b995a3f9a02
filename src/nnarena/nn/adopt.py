"""A person's own model, as plain as they wrote it, made a competitor.

What the class or function asks for decides how it is called:

    Net(spec, …)                        a builder: gets the task's specification, returns a module
    Net(input_size, output_size, …)     a whole model: (batch, time, features) → (batch, output_size)
    Net(input_size, hidden_size, …)     a recurrent layer like torch.nn.LSTM: a dense layer is put behind its output
    Net(…)                              a module that needs no sizes

All other arguments are options: `my_file.py:Net[depth=3]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nnarena.core.components import Component, signature_options
from nnarena.core.errors import ArenaError
from nnarena.core.spec import TaskSpec
from nnarena.nn.head import SequenceModel

DEFAULT_HIDDEN_SIZE = 64
GIVEN = ("spec", "input_size", "output_size", "batch_first")


def adopt(target: Callable[..., Any]) -> Component:
    name = getattr(target, "__name__", type(target).__name__)
    if isinstance(target, type) and not issubclass(target, nn.Module):
        raise ArenaError(f"{name} cannot be a model: a class must be a subclass of torch.nn.Module.")
    wants = set(inspect.signature(target).parameters)

    def build(spec: TaskSpec, **options: Any) -> nn.Module:
        if "spec" in wants:
            return _module(target(spec, **options), name)
        takes_time = "timespans" in inspect.signature(getattr(target, "forward", target)).parameters
        features = spec.input_size + (spec.timespans and not takes_time)
        sizes = {"input_size": features, "output_size": spec.output_size, "batch_first": True}
        built = _module(target(**{key: size for key, size in sizes.items() if key in wants}, **options), name)
        if {"input_size", "hidden_size"} <= wants and "output_size" not in wants:
            if not hasattr(built, "hidden_size"):
                built.hidden_size = options["hidden_size"]
            built.continuous = takes_time  # type: ignore[assignment]
            return SequenceModel(built, spec)
        return built if takes_time or not spec.timespans else TimeAsFeature(built)

    options = signature_options(target, skip=GIVEN)
    hidden = next((option for option in options if option.name == "hidden_size" and option.required), None)
    if hidden is not None:
        filled = type(hidden)("hidden_size", hidden.annotation or "int", DEFAULT_HIDDEN_SIZE, False, hidden.doc)
        options = tuple(filled if option is hidden else option for option in options)
    doc = inspect.getdoc(target) or ""
    return Component("model", name, target.__module__, name, doc, options, target=build)


def _module(built: Any, name: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise ArenaError(f"{name} gave a {type(built).__name__}; a model must be a torch.nn.Module.")
    return built


class TimeAsFeature(nn.Module):
    """Hands the elapsed time to a model as one more feature."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, timespans: Tensor) -> Tensor:
        return self.model(torch.cat([x, timespans.unsqueeze(-1)], -1))
