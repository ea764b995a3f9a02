"""NNArena: an arena in which neural networks meet under equal, honest conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nnarena.api import Result, build, run
    from nnarena.core.components import model, optimizer, task
    from nnarena.core.spec import Samples, TaskSpec
    from nnarena.core.task import Task

# Where each public name lives. They are imported on first use, so that `import nnarena` costs nothing.
_HOMES = {
    "run": "nnarena.api",
    "build": "nnarena.api",
    "Result": "nnarena.api",
    "model": "nnarena.core.components",
    "task": "nnarena.core.components",
    "optimizer": "nnarena.core.components",
    "Samples": "nnarena.core.spec",
    "TaskSpec": "nnarena.core.spec",
    "Task": "nnarena.core.task",
}

__all__ = ["Result", "Samples", "Task", "TaskSpec", "build", "model", "optimizer", "run", "task"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nnarena' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
