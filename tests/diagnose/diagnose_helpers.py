"""Small cells and tasks of which every figure can be worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nnarena.core.spec import TaskSpec
from nnarena.core.task import Task
from nnarena.nn import Recurrent


class Elman(Recurrent):
    """h ← tanh(V x_t + W h + b), or without tanh."""

    def __init__(self, input_size: int, hidden_size: int, squash: bool = True, backend: str = "auto") -> None:
        super().__init__(input_size, hidden_size, backend=backend)
        self.V = nn.Linear(input_size, hidden_size, dtype=torch.float64)
        self.W = nn.Parameter(torch.randn(hidden_size, hidden_size, dtype=torch.float64) / hidden_size**0.5)
        self.squash = squash

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.hidden_size)

    def constants(self) -> tuple[Tensor, bool]:
        return self.W, self.squash

    def project(self, constants: Any, x: Tensor, timespans: Tensor | None) -> Tensor:
        return self.V(x)

    @staticmethod
    def step(constants: tuple[Tensor, bool], u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        W, squash = constants
        h = u + state @ W.t()
        h = h.tanh() if squash else h
        return h, h


class Values(Task):
    """Targets that are numbers: the loss is the mean squared error."""

    def __init__(self, length: int, features: int, outputs: int, per_step: bool = False) -> None:
        shape = (length, features)
        self.spec = TaskSpec(input_shape=shape, output_size=outputs, target="values", per_step=per_step)


def flow(measured: dict[str, Any], of: str) -> dict[str, Any]:
    (found,) = (item for item in measured["flow"] if item["of"] == of)
    return found
