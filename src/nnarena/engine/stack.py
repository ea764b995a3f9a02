"""Many trials of one kind trained as one: every tensor gets a first dimension that counts the members.

S members, B samples a batch, N samples. `vmap` turns the model into S copies, and the gradient of the sum of all
losses is each member's own gradient, because no member's loss depends on another's parameters. Every member has its
own data, order of batches, learning rate and end; one that diverged or finished does not disturb the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from nnarena.core.errors import first_line
from nnarena.core.trial import Trial
from nnarena.engine.blend import Blend
from nnarena.engine.drop import dropping
from nnarena.engine.norms import SideBySide
from nnarena.engine.prepare import make_optimizer
from nnarena.engine.step import Data, State, judge, keep_buffers
from nnarena.engine.trainer import Alone, Log, Trainee, Trainer

ELEMENTWISE = (SGD, Adam, AdamW, NAdam, RMSprop, Adagrad, Adadelta)
SHARED = ("step", "mu_product")  # what an optimizer keeps once a tensor; all else has a number for every parameter
# How near a member's loss in the stack must be to its own, by what products are computed in.
NEAR = {
    "float32": {"rtol": 1e-3, "atol": 1e-6},
    "tf32": {"rtol": 2e-2, "atol": 1e-3},
    "bf16": {"rtol": 5e-2, "atol": 1e-3},
}


class Unstackable(Exception):
    """These trials cannot be trained as one; says why."""


@dataclass
class Cohort:
    """Members that have taken equally many steps: rows of the stack, and the optimizer that moves them."""

    rows: slice
    params: list[Tensor]
    optimizer: Optimizer

    def take(self, gradients: Sequence[Tensor | None]) -> None:
        for param, gradient in zip(self.params, gradients, strict=True):
            param.grad = None if gradient is None else gradient[self.rows]


class Stacked(Trainer):
    """S members as one model. Raises Unstackable if that cannot be."""

    def __init__(
        self, trial: Trial, members: Sequence[Trainee], batch_size: int, device: torch.device, log: Log
    ) -> None:
        members = sorted(members, key=lambda member: _progress(member.ready.state))  # equal steps side by side
        super().__init__(members, batch_size, device, log)
        check_optimizer(members[0].ready.state.optimizer)
        if len(members[0].start_lrs) > 1 and len({tuple(member.start_lrs) for member in members}) > 1:
            raise Unstackable("they have several learning rates each, and differ in them")
        states = [member.ready.state for member in members]
        self.rows = torch.arange(len(members), device=device)[:, None]
        self.params = {name: _stack(states, name).requires_grad_() for name in states[0].params}
        self.buffers = {name: _stack(states, name) for name in states[0].buffers}
        self.start_lr = max(member.start_lrs[0] for member in members)
        self.blend = Blend(list(self.params.values()), len(members), self.start_lr)
        self.cohorts = list(self._make_cohorts(trial, states))
        self.optimizers = [cohort.optimizer for cohort in self.cohorts]
        self.train_data, self.validation_data = (self._stack_data(name) for name in ("train", "validation"))
        self.near = NEAR[trial.protocol.precision]
        self.losses_of = torch.vmap(self._loss_of_one, randomness="error")
        self.scores_of = torch.vmap(self._score_of_one, randomness="error")
        self._rehearse()
        self.start()

    @torch.no_grad()
    def state(self, member: int) -> State:
        """Row by row back into the member's own tensors, so that it can be stored, or go on alone."""
        state = self.members[member].ready.state
        for name, param in state.params.items():
            param.copy_(self.params[name][member])
        state.buffers.update({name: buffer[member].clone() for name, buffer in self.buffers.items()})
        cohort = next(cohort for cohort in self.cohorts if cohort.rows.start <= member < cohort.rows.stop)
        for param, row in zip(state.params.values(), cohort.params, strict=True):
            kept = cohort.optimizer.state.get(row)
            if kept:
                state.optimizer.state[param] = {
                    name: _row(name, value, member - cohort.rows.start) for name, value in kept.items()
                }
        return state

    def _gradients_of(self, index_SB: Tensor) -> Tensor:
        inputs, targets = self._batch(self.train_data, index_SB, self.keys_S)
        shaken = self.regime.shaken(self.params, self.keys_S, self.place, population_dims=1)
        with SideBySide():
            losses_S, buffers = self.losses_of({**self.params, **shaken}, self.buffers, inputs, targets, self.keys_S)
        gradients = torch.autograd.grad(losses_S.sum(), list(self.params.values()), allow_unused=True)
        for cohort in self.cohorts:
            cohort.take(gradients)
        keep_buffers(self.buffers, buffers)
        return losses_S.detach()

    def _gradient_of(self, name: str) -> Tensor | None:
        place = list(self.params).index(name)
        rows = [cohort.params[place].grad for cohort in self.cohorts]
        return None if rows[0] is None else torch.cat(rows)  # type: ignore[arg-type]

    def _score(self, rows_B: Tensor) -> dict[str, Tensor]:
        inputs, targets = self._batch(self.validation_data, rows_B.expand(len(self.members), -1))
        with SideBySide():
            return self.scores_of({**self.params, **self.buffers}, inputs, targets)

    def _batch(self, data: Data, index_SB: Tensor, keys_S: Tensor | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        """A batch of every member; the task makes one large batch of them ready, in which nobody sees a neighbour."""
        gathered = tuple(part[self.rows, index_SB].flatten(0, 1) for part in data.inputs)
        keys = None if keys_S is None else keys_S[:, None].expand_as(index_SB).flatten()
        inputs = data.present(gathered, index_SB.flatten(), keys)
        return tuple(part.unflatten(0, index_SB.shape) for part in inputs), data.targets[self.rows, index_SB]

    def _loss_of_one(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        weights, loss_of = {**params, **buffers}, self.regime.loss_of(self.task)
        with dropping(self.model, key, self.place):
            loss = self.task.teach(lambda *parts: functional_call(self.model, weights, parts), inputs, targets, loss_of)
        return loss, {name: weights[name] for name in buffers}

    def _score_of_one(self, weights: Mapping[str, Tensor], inputs: Any, targets: Tensor) -> dict[str, Tensor]:
        return judge(self.model, self.task, weights, inputs, targets)

    def _stack_data(self, name: str) -> Data:
        """All members' samples (S, N, …); a member's own become rows of these, so that they lie there once."""
        parts = [member.ready.parts[name] for member in self.members]
        inputs = tuple(torch.stack(columns) for columns in zip(*(part.inputs for part in parts), strict=True))
        targets = torch.stack([part.targets for part in parts])
        stacked = Data(inputs, targets, self.task, input_noise=parts[0].input_noise)
        for row, member in enumerate(self.members):
            own = {"inputs": tuple(part[row] for part in inputs), "targets": stacked.targets[row]}
            member.ready.parts[name] = replace(member.ready.parts[name], **own)
        return stacked

    def _make_cohorts(self, trial: Trial, states: Sequence[State]) -> Iterator[Cohort]:
        start = 0
        for _, group in groupby(states, key=_progress):
            cohort = list(group)
            rows = slice(start, start + len(cohort))
            params = [param.detach()[rows] for param in self.params.values()]
            more: dict[str, Any] = {"lr": self.start_lr} if "lr" in trial.options["optimizer"] else {}
            optimizer = make_optimizer(trial, dict(zip(self.params, params, strict=True)), self.device, 1, **more)
            for place, param in enumerate(params):
                kept = [state.optimizer.state.get(list(state.params.values())[place], {}) for state in cohort]
                if kept[0]:
                    optimizer.state[param] = {name: _column(name, [entry[name] for entry in kept]) for name in kept[0]}
            yield Cohort(rows, params, optimizer)
            start = rows.stop

    def _rehearse(self) -> None:
        """A step and a look at the first batch that leave no trace, and whether the numbers are each member's own."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                self.model.train()
                index = self.columns.expand(len(self.members), -1)
                copies = {name: buffer.clone() for name, buffer in self.buffers.items()}
                batch = self._batch(self.train_data, index, self.keys_S)
                with SideBySide():
                    losses_S, _ = self.losses_of(self.params, copies, *batch, self.keys_S)
                torch.autograd.grad(losses_S.sum(), list(self.params.values()), allow_unused=True)
                self.model.eval()
                with torch.no_grad():
                    together = next(iter(self._score(self.columns).values()))
                    apart = torch.stack([self._score_apart(member) for member in self.members])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise Unstackable(f"{type(error).__name__}: {first_line(error)}") from error
        if not torch.allclose(together, apart, equal_nan=True, **self.near):
            raise Unstackable("its seeds differ in more than parameters and buffers")

    def _score_apart(self, member: Trainee) -> Tensor:
        """A member's loss on its first validation batch, by its own model."""
        ready = member.ready
        inputs, targets = ready.parts["validation"].batch(self.columns)
        scores = judge(ready.model.eval(), self.task, ready.state.weights(), inputs, targets)
        return next(iter(scores.values()))


def make_trainer(trial: Trial, members: Sequence[Trainee], device: torch.device, log: Log) -> Trainer:
    """Of one member alone, or of many as one. `trial` is any of them."""
    batch_size = trial.protocol.batch_size
    if len(members) == 1:
        trainer = Alone(members[0], batch_size, device, log)
    else:
        trainer = Stacked(trial, members, batch_size, device, log)
    if trial.protocol.watch_gradient:
        trainer.watch_gradient()
    return trainer


def check_optimizer(optimizer: Optimizer) -> None:
    """Whether an optimizer does to each row of a stacked tensor what it would do to that row alone.

    torch's treat every number by itself. One that takes norms or products of whole tensors says that it can leave
    members apart by an attribute `population_dims`: how many first dimensions count members, 0 until it is set. Its
    update must be linear in `lr`, it calls its count of steps `step`, and all else it keeps has a row for each member.
    """
    if type(optimizer) not in ELEMENTWISE and not hasattr(optimizer, "population_dims"):
        raise Unstackable(f"{type(optimizer).__name__} is not known to treat the members of a stack apart")


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        phrase in text for phrase in ("can't allocate memory", "out of memory", "cublas_status_alloc_failed")
    )


def _progress(state: State) -> tuple[Any, ...]:
    """What must be equal for one optimizer to move several members: what it keeps, and its counters."""
    kept = (state.optimizer.state.get(param, {}) for param in state.params.values())
    return tuple(
        tuple(sorted((name, float(value) if name in SHARED else -1.0) for name, value in entry.items()))
        for entry in kept
    )


def _stack(states: Sequence[State], name: str) -> Tensor:
    return torch.stack([state.weights()[name].detach() for state in states])


def _column(name: str, values: list[Any]) -> Any:
    if name in SHARED or not isinstance(values[0], Tensor):
        return values[0].clone() if isinstance(values[0], Tensor) else values[0]
    return torch.stack(values)


def _row(name: str, value: Any, row: int) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.clone() if name in SHARED else value[row].clone()
