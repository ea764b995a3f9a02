"""A person's own task.

class MyTask(nnarena.Task)       sets `self.spec`, writes `samples(rng)`; keyword arguments are options
def my_task(rng, …) -> (x, y)    numpy arrays: x (samples, steps, features), y float values or integer classes
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from nnarena.core.components import Component, signature_options
from nnarena.core.errors import ArenaError
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task


def adopt(target: Callable[..., Any]) -> Component:
    name = getattr(target, "__name__", type(target).__name__)
    doc = inspect.getdoc(target) or ""
    if isinstance(target, type):
        if not issubclass(target, Task):
            raise ArenaError(f"{name} cannot be a task: a class must be a subclass of nnarena.Task.")
        options = signature_options(target)
        return Component("task", name, target.__module__, name, doc, options, target=target)
    arguments = list(inspect.signature(target).parameters)
    if arguments[:1] != ["rng"]:
        raise ArenaError(f"{name} cannot be a task: its first argument must be rng, a numpy Generator.")

    def build(**options: Any) -> Task:
        return ArrayTask(name, target, options)

    options = signature_options(target, skip=["rng"])
    return Component("task", name, target.__module__, name, doc, options, target=build)


class ArrayTask(Task):
    """A function that returns arrays, as a task. The shapes are found by calling it once."""

    def __init__(self, name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.name, self.function, self.options = name, function, options
        samples = self.samples(np.random.default_rng(0))
        classes = samples.targets.dtype.kind in "iu"
        self.spec = TaskSpec(
            input_shape=samples.inputs.shape[1:],
            output_size=int(samples.targets.max()) + 1 if classes else samples.targets.shape[-1],
            target="class" if classes else "values",
            per_step=not classes and samples.targets.ndim == 3,
        )

    def samples(self, rng: np.random.Generator) -> Samples:
        made = self.function(rng, **self.options)
        if not isinstance(made, tuple) or len(made) != 2:
            raise ArenaError(f"The task {self.name} must return two arrays, inputs and targets.")
        x, y = (np.asarray(part) for part in made)
        if x.ndim != 3 or len(x) != len(y):
            raise ArenaError(
                f"The task {self.name} must return inputs (samples, steps, features) and as many targets, "
                f"not {x.shape} and {y.shape}."
            )
        if y.dtype.kind in "iu" and y.ndim == 1:
            return Samples(x.astype(np.float32), y.astype(np.int64))
        y = y.astype(np.float32)
        return Samples(x.astype(np.float32), y[:, None] if y.ndim == 1 else y)
