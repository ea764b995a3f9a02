"""One step of training and evaluation, of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from nnarena.core.noise import uniform
from nnarena.core.task import Loss, Task
from nnarena.engine.regime import shaken_inputs


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

    inputs    as they are stored: (N, T, F), and (N, T) timespans where the task gives them; or (N, C, H, W)
    targets   (N, …)
    task      knows how to make of these what the model is called with
    layout    how images lie in memory when the model is called with a batch
    input_noise   σ of the normal noise that inputs get in training
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    task: Task = field(default_factory=Task)
    layout: torch.memory_format = torch.contiguous_format
    input_noise: float = 0.0

    def batch(self, index: Tensor, key: Tensor | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        """What the model is called with, and the targets; with a `key` for random numbers, as it is in training."""
        inputs = self.present(tuple(part[index] for part in self.inputs), index, key)
        if self.layout != torch.contiguous_format:
            inputs = tuple(part.contiguous(memory_format=self.layout) if part.ndim == 4 else part for part in inputs)
        return inputs, self.targets[index]

    def present(self, inputs: tuple[Tensor, ...], index: Tensor, key: Tensor | None) -> tuple[Tensor, ...]:
        """Of samples that were gathered already; the random numbers depend on the key and on which samples they are."""
        count = self.task.noise
        inputs = self.task.present(inputs, uniform(key, index, count) if count and key is not None else None)
        return inputs if key is None or not self.input_noise else shaken_inputs(inputs, index, key, self.input_noise)

    def __len__(self) -> int:
        return len(self.targets)


def multiply_in(precision: str, model: nn.Module, device: torch.device) -> nn.Module:
    """The model, whose products and convolutions are computed in bfloat16 if the protocol says so.

    Weights, gradients and the answer stay float32. The casts are not kept for the next use: a recorded step must read
    the weights anew.
    """
    if precision == "bf16":
        plain = model.forward

        def forward(*inputs: Tensor) -> Any:
            with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
                return tree_map(Tensor.float, plain(*inputs))

        model.forward = forward
    return model


def image_layout(model: nn.Module, precision: str, device: torch.device) -> torch.memory_format:
    """With the channels last, where a model says by an attribute `channels_last` that it does not mind.

    A training step on a CPU is faster by it, and a GPU's matrix units are made for it; in float32 a GPU keeps the
    usual layout. A model that takes a `view` of an image does mind.
    """
    faster = device.type == "cpu" or precision != "float32"
    return torch.channels_last if faster and getattr(model, "channels_last", False) else torch.contiguous_format


def train_step(model: nn.Module, task: Task, state: State, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """A function of (parameters, optimizer state, batch) and nothing else; the state is updated where it lies.

    `model` lends its structure only: its own parameters are neither read nor written.
    """
    loss = compute_gradients(model, task, state, inputs, targets)
    state.optimizer.step()
    return loss


def compute_gradients(
    model: nn.Module,
    task: Task,
    state: State,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    loss_of: Loss | None = None,
    shaken: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The first half of a step: the loss of a batch, and every parameter's `grad`.

    `shaken` parameters, functions of the state's, may take their place in the model.
    """
    weights = {**state.weights(), **(shaken or {})}
    loss = task.teach(lambda *parts: functional_call(model, weights, parts), inputs, targets, loss_of)
    params = list(state.params.values())
    for param, gradient in zip(params, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
        param.grad = gradient
    keep_buffers(state.buffers, weights)
    return loss.detach()


def keep_buffers(buffers: dict[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """A model may put a new tensor in a buffer's place: its numbers go where the old ones lie, which stays put.

    After the backward pass, which may still need the old numbers.
    """
    for name, buffer in buffers.items():
        new = after[name].detach()
        if new.is_set_to(buffer):
            continue
        if new.shape == buffer.shape and new.dtype == buffer.dtype:
            buffer.copy_(new.clone())  # it may be another view of the same numbers
        elif torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"the buffer {name} changes its shape or type")
        else:
            buffers[name] = new


def answer(model: nn.Module, task: Task, weights: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    """What the model says with these weights when it is validated or tested."""
    return task.answer(lambda *parts: functional_call(model, dict(weights), parts), inputs)


def judge(
    model: nn.Module,
    task: Task,
    weights: Mapping[str, Tensor],
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    see: Callable[[Tensor], None] = lambda prediction: None,
) -> dict[str, Tensor]:
    """How good the model is with these weights on a batch of validation or test; `see` is shown what it answers."""
    return task.judge(lambda *parts: functional_call(model, dict(weights), parts), inputs, targets, see)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    weights: Mapping[str, Tensor],
    data: Data,
    batch_size: int,
    see: Callable[[Tensor], None] = lambda prediction: None,
) -> dict[str, float]:
    """Means of all metrics over the samples; the last batch may be smaller. `see` is shown every batch's answers."""
    model.eval()
    index = torch.arange(len(data), device=data.targets.device)
    totals: dict[str, list[Tensor]] = {}
    for rows in index.split(batch_size):
        inputs, targets = data.batch(rows)
        for name, value in judge(model, task, weights, inputs, targets, see).items():
            totals.setdefault(name, []).append(value)
    shares = [len(rows) / batch_size for rows in index.split(batch_size)]
    return {
        name: float(np.average(torch.stack(values).double().cpu().numpy(), weights=shares))
        for name, values in totals.items()
    }
