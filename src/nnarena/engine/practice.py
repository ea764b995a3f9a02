"""Trials whose models learn from what they do, and not from samples: the task's learner trains, epoch by epoch.

All else is as for any trial: the same folder, curve, checkpoint and result; validation alone selects the weights, the
test is read once; whatever goes wrong becomes a row. They are never trained as one: each runs alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.core.files import finite, write_json
from nnarena.core.learner import Learner, Means, Work
from nnarena.core.spec import Samples
from nnarena.core.task import Task
from nnarena.core.trial import Trial
from nnarena.engine.checkpoint import load_checkpoint, save_checkpoint
from nnarena.engine.device import computing_with
from nnarena.engine.graph import Replayed, all_at_once, is_recordable
from nnarena.engine.members import Log, Member
from nnarena.engine.prepare import Ready, build_model, make_optimizer
from nnarena.engine.schedule import Schedule
from nnarena.engine.splits import Split
from nnarena.engine.step import State, multiply_in
from nnarena.engine.tensors import save
from nnarena.engine.trainer import OutOfTime, Trainer
from nnarena.engine.transfer import keep_weights
from nnarena.results.folder import CHECKPOINT, EXHIBIT, MODEL

RECORDS = 10  # last epochs over which the result describes the training
NOTHING = np.empty(0, np.int64)


def practises(trial: Trial) -> bool:
    """Whether the trial's model learns from what it does."""
    return getattr(trial.components["task"].load(), "practises", False)


def make_learner(trial: Trial, device: torch.device, log: Log, weights: Path | None = None) -> tuple[Ready, Learner]:
    """Model, optimizer and learner of a trial, nothing trained yet."""
    task: Task = trial.components["task"].load()(**trial.options["task"])
    model = multiply_in(trial.protocol.precision, build_model(trial, task, weights, log), device).to(device)
    named = dict(model.named_parameters())
    params: dict[str, Tensor] = {name: param for name, param in named.items() if param.requires_grad}
    fixed = {name: param.detach() for name, param in named.items() if not param.requires_grad}
    optimizer = _make_optimizer(trial, device, params)
    means = Means(
        seed=trial.axis("practice"),
        device=device,
        batch_size=trial.protocol.batch_size,
        make_optimizer=partial(_make_optimizer, trial, device),
        repeat=partial(_repeat, trial, device, log, is_recordable(optimizer)),
    )
    ready = Ready(
        task=task,
        model=model,
        state=State(params, fixed | dict(model.named_buffers()), optimizer),
        samples=Samples(NOTHING, NOTHING),
        split=Split(NOTHING, NOTHING, NOTHING),
        parts={},
        parameters=sum(param.numel() for param in params.values()),
    )
    return ready, task.learner(model, optimizer, means)


def _make_optimizer(trial: Trial, device: torch.device, params: Mapping[str, Tensor] | Sequence[Tensor]) -> Optimizer:
    """The trial's optimizer of the model's parameters, or of tensors without names, which have no rates of their own.

    torch's Adam takes all of them in one call, on the CPU too.
    """
    if isinstance(params, Mapping):
        return all_at_once(make_optimizer(trial, params, device))
    names = map(str, count())
    return all_at_once(make_optimizer(trial, dict(zip(names, params, strict=False)), device, own_rates=False))


def _repeat(trial: Trial, device: torch.device, log: Log, recordable: bool, work: Work) -> Work:
    return Replayed(work, device, log, f"{'/'.join(trial.cell)}: an update") if recordable else work


class Practitioner(Member):
    """A trial with its learner."""

    learner: Learner

    def make_ready(self, log: Log) -> None:
        self.ready, self.learner = make_learner(self.trial, self.device, log, keep_weights(self.trial, self.folder))

    def prepare(self, log: Log) -> list[dict[str, Any]]:
        self.log = log
        return super().prepare(log)

    def make_schedule(self) -> Schedule:
        return Schedule(self.trial.protocol, patient=True)

    def load(self, path: Path) -> dict[str, Tensor]:
        try:
            best = load_checkpoint(path, self.ready.state, self.schedule, self.learner)
            self.learner.renew()
            return best
        except Exception:
            self.make_ready(self.log)  # which may have been changed half
            raise

    def order(self) -> Tensor:
        return torch.empty(0)  # of no samples

    def see(self, loss: float, state: State) -> None:
        super().see(loss, state)
        self.schedule.finished |= self.learner.finished

    def set_pace(self) -> None:
        super().set_pace()
        if self.schedule.factor != 1:
            self.learner.renew()

    def all_optimizers(self) -> list[Optimizer]:
        return [*super().all_optimizers(), *self.learner.optimizers.values()]

    def store(self, line: dict[str, Any]) -> None:
        self.folder.append(line)
        save_checkpoint(self.folder.path / CHECKPOINT, self.ready.state, self.best, self.schedule, self.learner)

    def watch(self) -> dict[str, float]:
        return self.learner.examine("test")

    @torch.no_grad()
    def score(self, status: str) -> None:
        """The selected weights and how good they are: here (and in `watch`) alone the test is read."""
        result = self.result
        result["status"], result["best_epoch"] = status, self.schedule.best_epoch
        result["training"] = _means([line["training"] for line in self.folder.curve()[-RECORDS:]])
        if self.best:
            save(self.folder.path / MODEL, self.best)
            for name, tensor in self.ready.state.weights().items():
                tensor.copy_(self.best[name])
            for part in ("validation", "test"):
                result[part] = self.learner.examine(part)
            exhibit = self.learner.exhibit()
            if exhibit:
                write_json(self.folder.path / EXHIBIT, finite(exhibit))
        result["baselines"] = self.learner.baselines()

    def finish(self) -> None:
        super().finish()
        if "learner" in self.__dict__:
            self.learner.close()
            del self.learner


class Practice(Trainer):
    """A trainer that leaves everything to the learner of its only member."""

    def __init__(self, member: Practitioner, device: torch.device) -> None:
        self.members, self.device, self.learner = [member], device, member.learner
        self.state_of_one, self.steps = member.ready.state, member.learner.steps
        self.training: dict[str, float] = {}

    def train(self, orders: Sequence[Tensor | None], deadline: float | None = None) -> list[float]:
        def go_on() -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise OutOfTime

        self.training = self.learner.practise(go_on)
        return [self.training.pop("loss")]

    def set_noise(self, keys: Sequence[int | None]) -> None:
        """A learner makes its own samples."""

    def validate(self) -> list[dict[str, float]]:
        return [self.learner.examine("validation")]

    def state(self, member: int) -> State:
        return self.state_of_one

    def remarks(self, member: int) -> dict[str, Any]:
        steps = {"steps": self.learner.taken} if self.learner.taken else {}
        return {"training": self.training, **steps}


def seconds_of_practice(trial: Trial, device: torch.device) -> float:
    """About how long an epoch takes, from a few steps."""
    with computing_with(trial.protocol.threads, device, trial.protocol.precision):
        learner = make_learner(trial, device, log=lambda text: None)[1]
        try:
            return learner.seconds()
        finally:
            learner.close()


def _means(lines: list[dict[str, float | None]]) -> dict[str, float | None]:
    """The mean of every number over some epochs; none where one of them is not finite."""
    names = lines[0] if lines else {}
    columns = {name: [line[name] for line in lines] for name in names}
    return {
        name: None if None in column else float(np.mean(np.array(column, float))) for name, column in columns.items()
    }
