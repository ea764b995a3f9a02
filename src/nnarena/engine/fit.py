"""Whether a model fits a task, found out before anything runs; and what a trial would cost."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from nnarena.core.errors import ArenaError, DataError, Unfit
from nnarena.core.spec import END, Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.core.trial import Trial
from nnarena.engine.device import computing_with, free_memory, synchronise
from nnarena.engine.graph import WARM_UP
from nnarena.engine.practice import practises, seconds_of_practice
from nnarena.engine.prepare import build_model, make_optimizer, make_ready
from nnarena.engine.splits import Split, held_out
from nnarena.engine.stack import is_out_of_memory, make_trainer
from nnarena.engine.step import multiply_in

EVALUATION = 1 / 3  # the time of a step that only looks, in steps that learn


def check_fit(trial: Trial) -> int:
    """Build the model, feed it two samples of zeros, look at what comes out. Returns its trainable parameters."""
    if trial.protocol.watch_gradient and practises(trial):
        raise ArenaError(f"watch_gradient: the steps of {trial.task.label} are its own, and cannot be watched.")
    task: Task = trial.components["task"].load()(**trial.options["task"])
    model = multiply_in(trial.protocol.precision, build_model(trial, task), torch.device("cpu"))
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise Unfit(f"{trial.model.label} has no parameters, so there is nothing to train.")
    try:
        make_optimizer(trial, parameters, torch.device("cpu"))
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
    return sum(parameter.numel() for parameter in parameters.values())


def check_data(trial: Trial) -> None:
    """Raise ArenaError if the task lacks a file, or has too few samples to split."""
    if isinstance(trial.options["task"].get("samples"), int):
        try:
            held_out(trial.options["task"]["samples"], trial.protocol)
        except ArenaError as error:
            raise ArenaError(f"{trial.task.label}: {error}") from error
    trial.components["task"].load()(**trial.options["task"]).check()


def epoch_size(trial: Trial) -> tuple[float, float]:
    """About how many samples an epoch learns from and looks at; none where the data are not here yet."""
    protocol, count = trial.protocol, trial.options["task"].get("samples") or trial.protocol.samples
    kept = protocol.test_fraction
    if not isinstance(count, int):
        try:
            samples = trial.components["task"].load()(**trial.options["task"]).samples(np.random.default_rng(0))
        except DataError:
            return 0.0, 0.0
        aside = samples.set_aside
        count, kept = (len(samples.targets), kept) if aside is None else (int((~aside).sum()), 0.0)
    return count * (1 - kept - protocol.validation_fraction), count * protocol.validation_fraction


def blank_inputs(spec: TaskSpec, batch: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
    if spec.vocabulary:
        return (torch.full((batch, *spec.input_shape), END, device=device),)
    inputs = torch.zeros(batch, *spec.input_shape, device=device)
    if not spec.timespans:
        return (inputs,)
    return inputs, torch.ones(batch, spec.input_shape[0], device=device)


def blank_targets(spec: TaskSpec, count: int) -> np.ndarray:
    if spec.target == "tokens":
        return np.full((count, spec.target_length), END)
    return np.zeros(count, np.int64) if spec.target == "class" else np.zeros((count, *spec.output_shape), "f4")


def seconds_per_epoch(trials: Sequence[Trial], device: torch.device) -> float:
    """The time of an epoch of trials that are trained as one, validation included, from a few steps."""
    if practises(trials[0]):
        return seconds_of_practice(trials[0], device)
    learning, looking = epoch_size(trials[0])
    return seconds_per_step(trials, device) / trials[0].protocol.batch_size * (learning + EVALUATION * looking)


def seconds_per_step(trials: Sequence[Trial], device: torch.device, steps: int = 0) -> float:
    """The time of one training step of trials that are trained as one, measured on blank data.

    As it will be: stacked where that is possible, in parts where memory does not suffice, recorded on a GPU. From a few
    steps, or from as many as asked for.
    """
    steps = steps or (2 * (WARM_UP + 1) if device.type == "cuda" else 2)
    try:
        return _seconds_as_one([Blank(trial, steps, device) for trial in trials], steps, device)
    except Exception as error:
        if len(trials) == 1:
            raise
        part = (len(trials) + 1) // 2 if is_out_of_memory(error) else 1
    free_memory(device)  # outside of the handler: the error's frames hold on to it
    return len(trials) / part * seconds_per_step(trials[:part], device, steps)


class Blank:
    """What a trainer must know of a trial, with samples of zeros: enough for `steps` steps."""

    is_over = False

    def __init__(self, trial: Trial, steps: int, device: torch.device) -> None:
        task: Task = trial.components["task"].load()(**trial.options["task"])
        count, spec = steps * trial.protocol.batch_size, task.spec
        inputs, *timespans = (part.numpy() for part in blank_inputs(spec, count))
        targets = blank_targets(spec, count)
        samples, every = Samples(inputs, targets, *timespans), np.arange(count)
        self.trial, self.name = trial, "/".join(trial.cell)
        self.ready = make_ready(trial, task, samples, Split(every, every, every), device)
        self.start_lrs: list[float] = [group["lr"] for group in self.ready.state.optimizer.param_groups]
        self.lr = self.start_lrs[0]


def _seconds_as_one(members: list[Blank], steps: int, device: torch.device) -> float:
    batch = members[0].trial.protocol.batch_size
    with computing_with(members[0].trial.protocol.threads, device, members[0].trial.protocol.precision):
        trainer = make_trainer(members[0].trial, members, device, log=lambda text: None)
        orders = [torch.arange(steps * batch).reshape(trainer.steps, -1)] * len(members)
        try:
            trainer.train(orders)  # warms up, and on a GPU records
            synchronise(device)
            began = time.perf_counter()
            trainer.train(orders)
            synchronise(device)
            return (time.perf_counter() - began) / steps
        finally:
            trainer.close()
