"""When the learning rate falls, when training ends, and which epoch was the best.

The rules are those of Keras' ReduceLROnPlateau, EarlyStopping and ModelCheckpoint, as the published arena used them:
progress means a validation loss lower than the best so far by more than `min_delta`; the learning rate and the end
each keep their own count of epochs without progress; the checkpoint that is tested is the best by *any* improvement.

With schedule=steps the learning rate falls after the epochs that the protocol names instead, as torch's MultiStepLR
does. With exponential and cosine it falls after every epoch: after e of E epochs it is

    η γᵉ     or     η (1 + cos(π e / E)) / 2

With a warm-up of W epochs it is η (e + 1) / (W + 1) before them, and both then count from there.

With select=last the checkpoint that is tested is the last one, and no epoch is chosen at all.

A model that learns from what it does is validated by a few episodes, which say too little of progress: its learning
rate falls at milestones only, and its training ends with the epochs of the protocol (`patient`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from nnarena.core.protocol import Protocol


@dataclass
class Patience:
    """Counts epochs without progress."""

    limit: int
    min_delta: float
    best: float = float("inf")
    waited: int = 0

    def exhausted_by(self, loss: float) -> bool:
        if loss < self.best - self.min_delta:
            self.best, self.waited = loss, 0
            return False
        self.waited += 1
        return self.waited >= self.limit


def share(protocol: Protocol, epoch: int) -> float:
    """Which part of its full value the learning rate has after so many epochs, but for plateaus and milestones."""
    after = epoch - protocol.warmup
    if after < 0:
        return (epoch + 1) / (protocol.warmup + 1)
    if protocol.schedule == "exponential":
        return protocol.lr_decay**after
    if protocol.schedule == "cosine":
        return (1 + math.cos(math.pi * after / (protocol.epochs - protocol.warmup))) / 2
    return 1.0


class Schedule:
    """Fed with the validation loss of every epoch."""

    def __init__(self, protocol: Protocol, patient: bool = False) -> None:
        self.protocol, self.patient = protocol, patient
        self.plateau = Patience(protocol.plateau_patience, protocol.min_delta)
        self.stop = Patience(protocol.stop_patience, protocol.min_delta)
        self.epoch = 0
        self.best_epoch = 0
        self.best_loss = float("inf")
        self.finished = False
        self.improved = False
        self.factor = share(protocol, 0)  # what the learning rate must be multiplied by now

    def see(self, loss: float) -> None:
        """After an epoch: sets `improved`, `factor` and `finished`."""
        self.epoch += 1
        self.improved = loss < self.best_loss or self.protocol.select == "last"
        if self.improved:
            self.best_loss, self.best_epoch = loss, self.epoch
        plateau = self.plateau.exhausted_by(loss) and not self.patient
        if plateau:
            self.plateau.waited = 0
        self.factor = self._factor(plateau)
        stops = self.stop.exhausted_by(loss) and not self.patient
        self.finished = stops or self.epoch >= self.protocol.epochs

    def _factor(self, plateau: bool) -> float:
        protocol, factor = self.protocol, 1.0
        if protocol.schedule == "steps" and self.epoch in protocol.milestones:
            factor = protocol.step_factor
        elif protocol.schedule == "plateau" and plateau:
            factor = protocol.plateau_factor
        before, now = share(protocol, self.epoch - 1), share(protocol, self.epoch)
        return factor if now == before else factor * now / before

    def state(self) -> dict[str, Any]:
        """All that a continued run needs to know; JSON."""
        names = ("epoch", "best_epoch", "best_loss", "finished")
        return {name: getattr(self, name) for name in names} | {
            "plateau": asdict(self.plateau),
            "stop": asdict(self.stop),
        }

    def restore(self, state: dict[str, Any]) -> None:
        if state.keys() != self.state().keys():
            raise ValueError("the schedule's state lacks something")
        self.factor = 1.0  # the optimizer's state has it already
        for name, value in state.items():
            setattr(self, name, Patience(**value) if isinstance(value, dict) else value)
