"""A trial on its way: where it stands, what it has reached, and what it leaves on the disk."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.core.errors import ArenaError, StoreError, first_line
from nnarena.core.files import write_json, write_text
from nnarena.core.spec import Samples
from nnarena.core.trial import Trial
from nnarena.engine.attention import attention_maps
from nnarena.engine.checkpoint import load_checkpoint, save_checkpoint
from nnarena.engine.collapse import Answers
from nnarena.engine.device import device_name, is_lost, peak_memory, versions
from nnarena.engine.prepare import Ready, prepare
from nnarena.engine.schedule import Schedule
from nnarena.engine.stack import is_out_of_memory
from nnarena.engine.step import State, evaluate
from nnarena.engine.tensors import save
from nnarena.engine.transfer import keep_weights
from nnarena.results.folder import ATTENTION, CHECKPOINT, MODEL, TRACEBACK, TrialFolder, new_result

Log = Callable[[str], None]


class DeviceLost(BaseException):
    """A device that several processes share answers no more. It says nothing of a trial, which can go on elsewhere."""


class Member:
    """One trial with its schedule, best weights and result. `result` is what `result.json` will hold."""

    ready: Ready

    def __init__(self, trial: Trial, folder: TrialFolder, device: torch.device, exclusive: bool) -> None:
        self.trial, self.folder, self.device, self.exclusive = trial, folder, device, exclusive
        self.record = trial.as_dict() | {
            "id": trial.id,
            "device": device_name(device),
            "versions": versions(),
            "seeds": {purpose: trial.axis(purpose) for purpose in ("data", "split", "start")},
        }
        self.result = new_result(trial, exclusive=exclusive) | {"device": self.record["device"]}
        self.is_over = False

    def prepare(self, log: Log) -> list[dict[str, Any]]:
        """Make everything ready, from the beginning or from where a stopped run left off. Returns the curve so far."""
        self.make_ready(log)
        self.result["parameters"] = self.ready.parameters
        self.schedule = self.make_schedule()
        self.start_lrs: list[float] = [group["lr"] for group in self.ready.state.optimizer.param_groups]
        self.best = self._resume(log)
        self.set_pace()
        curve = self.folder.keep_epochs(self.schedule.epoch)
        timeout = self.trial.protocol.timeout
        spent = sum(line["seconds"] for line in curve)
        self.deadline = None if timeout is None else time.monotonic() + timeout - spent
        return curve

    def make_ready(self, log: Log) -> None:
        self.ready = prepare(self.trial, self.device, keep_weights(self.trial, self.folder), log)

    def make_schedule(self) -> Schedule:
        return Schedule(self.trial.protocol)

    def _resume(self, log: Log) -> dict[str, Tensor]:
        """Continue from the checkpoint if there is a good one. A damaged one is put aside: the trial begins anew."""
        path = self.folder.path / CHECKPOINT
        if not path.exists():
            return {}
        try:
            return self.load(path)
        except StoreError as error:
            log(f"{error} The trial starts again from its beginning.")
            return {}

    def load(self, path: Path) -> dict[str, Tensor]:
        return load_checkpoint(path, self.ready.state, self.schedule)

    @property
    def lr(self) -> float:
        return float(self.ready.state.optimizer.param_groups[0]["lr"])

    @property
    def name(self) -> str:
        return "/".join(self.trial.cell)

    @property
    def shapes(self) -> tuple[Any, ...]:
        """What members must have in common to be stacked: the shapes of data and weights."""
        data = [part.shape for data in self.ready.parts.values() for part in (*data.inputs, data.targets)]
        return *data, *((name, tensor.shape) for name, tensor in self.ready.state.weights().items())

    @property
    def steps(self) -> int:
        """Of an epoch."""
        samples = len(self.ready.parts["train"])
        return samples // self.ready.regime.step_size(samples, self.trial.protocol.batch_size)

    def order(self) -> Tensor:
        """(steps, samples a step): which samples each step of the next epoch sees, the same for all rivals."""
        rng = np.random.default_rng(self.trial.axis("order", self.schedule.epoch))
        order = rng.permutation(len(self.ready.parts["train"]))
        return torch.from_numpy(order.reshape(self.steps, -1))

    def noise(self) -> int:
        """The key of the next epoch's random changes of samples, the same for all rivals."""
        return self.trial.axis("noise", self.schedule.epoch)

    def see(self, loss: float, state: State) -> None:
        """After an epoch: is it the best, does the learning rate fall, is it the end?"""
        self.schedule.see(loss)
        if self.schedule.improved:
            self.best = {name: tensor.detach().clone() for name, tensor in state.weights().items()}
        self.set_pace()

    def set_pace(self) -> None:
        """Let the learning rates follow the schedule."""
        if self.schedule.factor != 1:
            for optimizer in self.all_optimizers():
                for group in optimizer.param_groups:
                    group["lr"] *= self.schedule.factor

    def all_optimizers(self) -> list[Optimizer]:
        return [self.ready.state.optimizer]

    def store(self, line: dict[str, Any]) -> None:
        """The epoch on the disk: from here on a crash costs nothing that came before."""
        self.folder.append(line)
        save_checkpoint(self.folder.path / CHECKPOINT, self.ready.state, self.best, self.schedule)

    def watch(self) -> dict[str, float]:
        """The test metrics after an epoch, only to be recorded: nothing is ever chosen by them."""
        ready = self.ready
        return evaluate(
            ready.model, ready.task, ready.state.weights(), ready.parts["test"], self.trial.protocol.batch_size
        )

    def score(self, status: str) -> None:
        """The selected weights and how good they are: here (and in `watch`) alone the test samples are read."""
        ready, result, batch = self.ready, self.result, self.trial.protocol.batch_size
        result["status"], result["best_epoch"] = status, self.schedule.best_epoch
        if self.trial.protocol.watch_gradient:
            result["training"] = _last_epoch(self.folder.curve(), self.steps)
        if self.best:
            save(self.folder.path / MODEL, self.best)
            for part in ("validation", "test"):
                answers = Answers(ready.task.spec)
                result[part] = evaluate(ready.model, ready.task, self.best, ready.parts[part], batch, answers.see)
            result["collapsed"] = answers.have_collapsed(ready.parts["test"].targets)
            if self.trial.protocol.watch_training:
                result["training"] |= evaluate(ready.model, ready.task, self.best, ready.parts["train"], batch)
            maps = attention_maps(ready.model, ready.task, self.best, ready.parts["test"])
            if maps:
                of = getattr(ready.model, "attention_of", "")
                write_json(self.folder.path / ATTENTION, {"of": of, "maps": maps})
        result["baselines"] = _baselines(ready)

    def check_device(self, error: Exception) -> None:
        """Raise DeviceLost if the device is shared and the error is its end: a neighbour's fault ends all together."""
        if not self.exclusive and is_lost(self.device):
            raise DeviceLost(f"{self.name}: the device answers no more: {first_line(error)}") from error

    def fail(self, error: Exception) -> None:
        self.check_device(error)
        self.result["status"] = "out_of_memory" if is_out_of_memory(error) else "failed"
        self.result["error"] = str(error) if isinstance(error, ArenaError) else f"{type(error).__name__}: {error}"
        write_text(self.folder.path / TRACEBACK, "".join(traceback.format_exception(error)))

    def finish(self) -> None:
        """Write the result: the trial is over, and its memory is free."""
        curve = self.folder.curve()
        seconds = [line["seconds"] for line in curve]
        self.result |= {
            "epochs": len(curve),
            "seconds_total": sum(seconds),  # with the device synchronised, validation included
            "seconds_per_epoch": sum(seconds) / len(seconds) if seconds else None,
            "exclusive_timing": self.result["exclusive_timing"] and not any("population" in line for line in curve),
            "peak_memory": peak_memory(self.device),
        }
        self.folder.finish(self.record, self.result)
        self.is_over = True
        self.best = {}
        self.__dict__.pop("ready", None)


def _last_epoch(curve: list[dict[str, Any]], steps: int) -> dict[str, float | None]:
    """How the last epoch went: its loss as a mean over batches and as their sum, and what was watched.

    And how long the gradient of the first weight was in the first epoch: where it is next to nothing, it vanished on
    the way back, or the signal on the way there.
    """
    if not curve:
        return {}
    loss, watched = curve[-1]["loss"], curve[-1]["training"]
    begun = next(iter(curve[0]["gradients"].values()), None)
    return {"loss": loss, "loss_sum": None if loss is None else loss * steps, **watched, "first_gradient": begun}


def _baselines(ready: Ready) -> dict[str, dict[str, float]]:
    samples, parts = ready.samples, ready.split
    train, test = (Samples(samples.inputs[index], samples.targets[index]) for index in (parts.train, parts.test))
    return ready.task.baselines(train, test)
