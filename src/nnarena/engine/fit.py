"""Whether a model fits a task, found out before anything runs; and what a trial would cost."""

from __future__ import annotations

import time

import torch
from torch import nn

from nnarena.core.errors import ArenaError, Unfit
from nnarena.core.spec import TaskSpec
from nnarena.core.task import Task
from nnarena.core.trial import Trial
from nnarena.engine.device import computing_with, synchronise
from nnarena.engine.prepare import build_model, make_state
from nnarena.engine.splits import held_out
from nnarena.engine.step import train_step


def check_fit(trial: Trial) -> int:
    """Build the model, feed it two samples of zeros, look at what comes out. Returns its trainable parameters."""
    task: Task = trial.components["task"].load()(**trial.options["task"])
    model = build_model(trial, task)
    optimizer = trial.components["optimizer"].load()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise Unfit(f"{trial.model.label} has no parameters, so there is nothing to train.")
    try:
        optimizer(parameters, **trial.options["optimizer"])
    except (ValueError, TypeError) as error:
        raise ArenaError(f"{trial.optimizer.label} cannot be made: {error}") from error
    wanted = (2, *task.spec.output_shape)
    try:
        with torch.no_grad():
            output = model.eval()(*blank_inputs(task.spec, 2))
    except Exception as error:
        raise Unfit(f"{trial.model.label} does not fit {trial.task.label}: {type(error).__name__}: {error}") from error
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if shape != wanted:
        raise Unfit(f"{trial.model.label} does not fit {trial.task.label}: it must give {wanted}, but it gave {shape}.")
    return sum(parameter.numel() for parameter in parameters)


def check_data(trial: Trial) -> None:
    """Raise ArenaError if the task lacks a file, or has too few samples to split."""
    if isinstance(trial.options["task"].get("samples"), int):
        try:
            held_out(trial.options["task"]["samples"], trial.protocol)
        except ArenaError as error:
            raise ArenaError(f"{trial.task.label}: {error}") from error
    trial.components["task"].load()(**trial.options["task"]).check()


def blank_inputs(spec: TaskSpec, batch: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
    inputs = torch.zeros(batch, *spec.input_shape, device=device)
    if not spec.timespans:
        return (inputs,)
    return inputs, torch.ones(batch, spec.input_shape[0], device=device)


def seconds_per_step(trial: Trial, device: torch.device, steps: int = 3) -> float:
    """The time of one training step, measured on blank data after a warm-up."""
    task: Task = trial.components["task"].load()(**trial.options["task"])
    model: nn.Module = build_model(trial, task).to(device)
    state = make_state(trial, model, device)
    batch = trial.protocol.batch_size
    inputs = blank_inputs(task.spec, batch, device)
    shape = () if task.spec.target == "class" else task.spec.output_shape
    targets = torch.zeros(batch, *shape, device=device, dtype=torch.int64 if task.spec.target == "class" else None)
    with computing_with(trial.protocol.threads, device):
        train_step(model, task, state, inputs, targets)
        synchronise(device)
        began = time.perf_counter()
        for _ in range(steps):
            train_step(model, task, state, inputs, targets)
        synchronise(device)
    return (time.perf_counter() - began) / steps
