"""How an epoch is trained and validated: by one model alone, or (`stack`) by many as one.

S members, B samples a batch, M metrics. All that an epoch reads and writes lies on the device, in tensors that stay
where they are: the order of the samples, a counter, the losses. The host looks at the numbers once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.engine.blend import Blend
from nnarena.engine.drop import dropping
from nnarena.engine.graph import Replayed, is_recordable
from nnarena.engine.hold import is_weight
from nnarena.engine.prepare import Ready
from nnarena.engine.step import State, compute_gradients, judge

Log = Callable[[str], None]


class OutOfTime(Exception):
    """The time of all members is up."""


class Trainee(Protocol):
    """What a trainer must know of a member."""

    @property
    def ready(self) -> Ready: ...
    @property
    def start_lrs(self) -> list[float]: ...
    @property
    def lr(self) -> float: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def name(self) -> str: ...


class Trainer:
    """S members. A subclass says how a batch is learned from and looked at, and what a member's state is."""

    def __init__(self, members: Sequence[Trainee], batch_size: int, device: torch.device, log: Log) -> None:
        ready = members[0].ready
        self.members, self.batch_size, self.device = list(members), batch_size, device
        self.task, self.model = ready.task, ready.model
        self.regime = ready.regime
        seen = self.regime.step_size(len(ready.parts["train"]), batch_size)
        self.steps = len(ready.parts["train"]) // seen
        self.looks = len(ready.parts["validation"]) // batch_size
        self.order_SB = torch.zeros(self.steps, len(members), seen, dtype=torch.int64, device=device)
        self.keys_S = torch.zeros(len(members), dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.columns = torch.arange(batch_size, device=device)
        self.losses_S = torch.zeros(self.steps, len(members), dtype=torch.float64, device=device)
        self.scores_MS: Tensor | None = None
        self.metrics: list[str] = []
        self.first_weight = ""
        self.watched: list[str] = []
        self.blend: Blend | None = None
        self.optimizers: list[Optimizer] = []
        self.log = log

    def start(self) -> None:
        """Everything is in its place: from now on steps may be recorded."""
        name = f"{self.members[0].name}: a step"
        whole = all(map(is_recordable, self.optimizers))
        self.learn = Replayed(self._step if whole else self._gradients, self.device, self.log, name)
        self.complete = (lambda: None) if whole else self._update  # what the recording leaves out
        self.look = Replayed(self._look, self.device, self.log, f"{self.members[0].name}: validation")

    def watch_gradient(self) -> None:
        """From now on every step records the mean gradient of the first layer's weights, and the mean of its size.

            mean of g,   mean of |g|,   over all entries of the first weight

        And the length ‖g‖ of every weight's gradient, summed over the steps. They lie on the device with the losses
        until the epoch is over.
        """
        params, count = self.members[0].ready.state.params, len(self.members)
        self.first_weight = first_weight(params)
        self.watched = [name for name, param in params.items() if is_weight(param)]
        self.gradients_S = torch.zeros(self.steps, 2, count, dtype=torch.float64, device=self.device)
        self.lengths_PS = torch.zeros(len(self.watched), count, dtype=torch.float64, device=self.device)

    def close(self) -> None:
        """Let go of the graphs and their memory."""
        self.__dict__.clear()

    def train(self, orders: Sequence[Tensor | None], deadline: float | None = None) -> list[float]:
        """One pass; returns the mean of each member's losses.

        `orders` (steps, samples a step) say which samples a member sees; who is over has none, and stands still.
        """
        self.model.train()
        for member, order in enumerate(orders):
            if order is not None:
                self.order_SB[:, member].copy_(order)
        self.place.zero_()
        if self.first_weight:
            self.lengths_PS.zero_()
        with self._paced():
            for _ in range(self.steps):
                self.learn()
                self.complete()
                if deadline is not None and time.monotonic() > deadline:
                    raise OutOfTime
        return [float(column.mean()) for column in _columns(self.losses_S)]

    def set_noise(self, keys: Sequence[int | None]) -> None:
        """What the random changes of the next epoch's samples come from, by member; who is over has none."""
        self.keys_S.copy_(torch.tensor([key or 0 for key in keys]))

    @torch.no_grad()
    def validate(self) -> list[dict[str, float]]:
        """Means of all metrics over the validation samples, by member."""
        self.model.eval()
        self.place.zero_()
        for _ in range(self.looks):
            self.look()
        assert self.scores_MS is not None
        means = [float(np.mean(column.numpy())) for column in _columns(self.scores_MS.flatten(1))]
        count = len(self.members)
        return [dict(zip(self.metrics, means[member::count], strict=True)) for member in range(count)]

    def state(self, member: int) -> State:
        """A member's own state, up to date."""
        raise NotImplementedError

    def remarks(self, member: int) -> dict[str, Any]:
        """What else the last epoch's line of a member shall hold.

        Where gradients are watched: of the first layer the size as a mean over all steps, for one step's is that of one
        batch, and the mean of the last step with its sign, as some papers print it; and the length of every weight's.
        """
        if not self.first_weight:
            return {}
        means, sizes = self.gradients_S[:, :, member].cpu().T
        lengths = (self.lengths_PS[:, member] / self.steps).tolist()
        return {
            "training": {"gradient": float(sizes.mean()), "last_gradient": float(means[-1])},
            "gradients": dict(zip(self.watched, lengths, strict=True)),
        }

    def _gradients_of(self, index_SB: Tensor) -> Tensor:
        """Leave the gradients of a batch where the optimizers find them; returns the losses (S,)."""
        raise NotImplementedError

    def _gradient_of(self, name: str) -> Tensor | None:
        """The gradient (S, …) of a parameter as the last batch left it; None if it has none."""
        raise NotImplementedError

    def _score(self, rows_B: Tensor) -> dict[str, Tensor]:
        """The metrics (S,) of some validation samples."""
        raise NotImplementedError

    @contextmanager
    def _paced(self) -> Iterator[None]:
        """Every member's learning rate is in force."""
        if self.blend is not None:
            self.blend.set_rates([0.0 if member.is_over else member.lr for member in self.members])
        yield

    def _step(self) -> None:
        self._gradients()
        self._update()

    def _gradients(self) -> None:
        losses_S = self._gradients_of(self.order_SB.index_select(0, self.place)[0])
        self.losses_S.index_copy_(0, self.place, losses_S.double()[None])
        if self.first_weight:
            self._record_gradients()
        self.place += 1

    def _record_gradients(self) -> None:
        if (entries := self._entries_of(self.first_weight)) is not None:
            self.gradients_S.index_copy_(0, self.place, torch.stack([entries.mean(1), entries.abs().mean(1)])[None])
        for place, name in enumerate(self.watched):
            if (entries := self._entries_of(name)) is not None:
                self.lengths_PS[place] += torch.linalg.vector_norm(entries, dim=1)

    def _entries_of(self, name: str) -> Tensor | None:
        """All numbers (S, …) of a parameter's gradient; None if it has none."""
        gradient = self._gradient_of(name)
        if gradient is None:
            return None
        return (torch.view_as_real(gradient) if gradient.is_complex() else gradient).flatten(1).double()

    @torch.no_grad()
    def _update(self) -> None:
        if self.blend is not None:
            self.blend.remember()
        for optimizer in self.optimizers:
            optimizer.step()
        if self.blend is not None:
            self.blend.apply()

    @torch.no_grad()
    def _look(self) -> None:
        scores = self._score(self.place * self.batch_size + self.columns)
        values_MS = torch.stack([value.double() for value in scores.values()])
        if self.scores_MS is None:
            self.metrics = list(scores)
            self.scores_MS = values_MS.new_zeros(self.looks, *values_MS.shape)
        self.scores_MS.index_copy_(0, self.place, values_MS[None])
        self.place += 1


class Alone(Trainer):
    """One member, on its own tensors.

    On a CPU its optimizer has its learning rate. On a GPU the rate at the start is recorded for good, and a lower one
    is blended in, so that nothing has to be recorded again.
    """

    def __init__(
        self, member: Trainee, batch_size: int, device: torch.device, log: Log, blends: bool | None = None
    ) -> None:
        super().__init__([member], batch_size, device, log)
        self.own = member.ready.state
        self.train_data, self.validation_data = (member.ready.parts[name] for name in ("train", "validation"))
        self.optimizers = [self.own.optimizer]
        if device.type == "cuda" if blends is None else blends:
            self.blend = Blend(list(self.own.params.values()), 1, member.start_lrs[0])
        self.start()

    def state(self, member: int) -> State:
        return self.own

    def _gradients_of(self, index_SB: Tensor) -> Tensor:
        batch = self.train_data.batch(index_SB[0], self.keys_S)
        shaken = self.regime.shaken(self.own.params, self.keys_S, self.place)
        with dropping(self.model, self.keys_S[0], self.place):
            loss = compute_gradients(self.model, self.task, self.own, *batch, self.regime.loss_of(self.task), shaken)
        return loss[None]

    def _gradient_of(self, name: str) -> Tensor | None:
        gradient = self.own.params[name].grad
        return None if gradient is None else gradient[None]

    def _score(self, rows_B: Tensor) -> dict[str, Tensor]:
        inputs, targets = self.validation_data.batch(rows_B)
        scores = judge(self.model, self.task, self.own.weights(), inputs, targets)
        return {name: value[None] for name, value in scores.items()}

    @contextmanager
    def _paced(self) -> Iterator[None]:
        if self.blend is None:
            yield
            return
        with super()._paced():
            groups = self.own.optimizer.param_groups
            lowered = [group["lr"] for group in groups]
            _set_lrs(groups, self.members[0].start_lrs)
            try:
                yield
            finally:
                _set_lrs(groups, lowered)


def first_weight(params: Mapping[str, Tensor]) -> str:
    """The first parameter that is no vector, in the order in which the model has them; the first if all are."""
    return next((name for name, param in params.items() if param.ndim > 1), next(iter(params)))


def _set_lrs(groups: list[dict[str, Any]], lrs: Sequence[float]) -> None:
    for group, lr in zip(groups, lrs, strict=True):
        group["lr"] = lr


def _columns(table: Tensor) -> list[Tensor]:
    """Every column of (rows, columns) in memory of its own, on the host."""
    return list(table.cpu().T.contiguous())
