"""When the learning rate falls, when training ends, and which epoch was the best.

The rules are those of Keras' ReduceLROnPlateau, EarlyStopping and ModelCheckpoint, as the published arena used them:
progress means a validation loss lower than the best so far by more than `min_delta`; the learning rate and the end
each keep their own count of epochs without progress; the checkpoint that is tested is the best by *any* improvement.

With schedule=steps the learning rate falls after the epochs that the protocol names instead, as torch's MultiStepLR
does; with select=last the checkpoint that is tested is the last one, and no epoch is chosen at all.

A model that learns from what it does is validated by a few episodes, which say too little of progress: its learning
rate falls at milestones only, and its training ends with the epochs of the protocol (`patient`).
"""

from __future__ import annotations

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
        self.reduce = False

    def see(self, loss: float) -> None:
        """After an epoch: sets `improved`, `reduce` and `finished`."""
        self.epoch += 1
        self.improved = loss < self.best_loss or self.protocol.select == "last"
        if self.improved:
            self.best_loss, self.best_epoch = loss, self.epoch
        plateau = self.plateau.exhausted_by(loss) and not self.patient
        if plateau:
            self.plateau.waited = 0
        self.reduce = self.epoch in self.protocol.milestones if self.protocol.schedule == "steps" else plateau
        stops = self.stop.exhausted_by(loss) and not self.patient
        self.finished = stops or self.epoch >= self.protocol.epochs

    @property
    def factor(self) -> float:
        """What the learning rate is multiplied by when it falls."""
        return self.protocol.step_factor if self.protocol.schedule == "steps" else self.protocol.plateau_factor

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
        for name, value in state.items():
            setattr(self, name, Patience(**value) if isinstance(value, dict) else value)
