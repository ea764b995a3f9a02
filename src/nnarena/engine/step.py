"""One step of training, an epoch of them, and evaluation.

The host stays out of an epoch: all data lie on the device, a batch is a row of indices, losses are read at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from nnarena.core.task import Task


class OutOfTime(Exception):
    """The trial's time is up."""


@dataclass
class State:
    """All that training changes; `buffers` holds frozen parameters too."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    optimizer: Optimizer

    def weights(self) -> dict[str, Tensor]:
        return {**self.params, **self.buffers}


@dataclass(frozen=True)
class Data:
    """Samples on the device. N samples.

    inputs    what the model is called with: (N, T, F), and (N, T) timespans where the task gives them
    targets   (N, …)
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(part[index] for part in self.inputs), self.targets[index]

    def __len__(self) -> int:
        return len(self.targets)


def train_step(model: nn.Module, task: Task, state: State, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """A function of (parameters, optimizer state, batch) and nothing else; the state is updated where it lies.

    `model` lends its structure only: its own parameters are neither read nor written.
    """
    weights = state.weights()
    prediction = functional_call(model, weights, inputs)
    state.buffers.update({name: weights[name].detach() for name in state.buffers})  # a model may put new ones in place
    loss = task.loss(prediction, targets)
    params = list(state.params.values())
    for param, gradient in zip(params, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
        param.grad = gradient
    state.optimizer.step()
    return loss.detach()


def train_epoch(
    model: nn.Module, task: Task, state: State, data: Data, order: Tensor, deadline: float | None = None
) -> float:
    """The mean loss over the batches of `order` (steps, batch size): one pass, one look at the numbers at its end."""
    model.train()
    losses = []
    for index in order.unbind():
        losses.append(train_step(model, task, state, *data.batch(index)))
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime
    return float(torch.stack(losses).double().mean())


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, weights: Mapping[str, Tensor], data: Data, batch_size: int
) -> dict[str, float]:
    """Means of all metrics over whole batches."""
    model.eval()
    index = torch.arange(len(data), device=data.targets.device)
    totals: dict[str, list[Tensor]] = {}
    for rows in index.split(batch_size):
        inputs, targets = data.batch(rows)
        for name, value in task.score(functional_call(model, dict(weights), inputs), targets).items():
            totals.setdefault(name, []).append(value)
    return {name: float(np.mean(torch.stack(values).double().cpu().numpy())) for name, values in totals.items()}
