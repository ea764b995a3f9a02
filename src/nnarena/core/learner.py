"""Learning by doing: what a task has in place of samples, where the model makes its own experience.

A `Learner` holds all that belongs to such a task and not to the competitor: environments, memory, critics. The engine
asks it for an epoch, examines the model, keeps both on the disk; it knows no more of it than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Work = Callable[[], None]


@dataclass(frozen=True)
class Means:
    """What the engine lends a learner.

    seed            the same for all rivals; every random choice outside of torch's generators is derived from it
    device          where to compute
    batch_size      samples a step
    make_optimizer  the trial's optimizer of other tensors
    repeat          work that is done again and again as fast as the device can: recorded as a CUDA graph on a GPU
    """

    seed: int
    device: torch.device
    batch_size: int
    make_optimizer: Callable[[Sequence[Tensor]], Optimizer]
    repeat: Callable[[Work], Work] = lambda work: work


class Learner(ABC):
    """Trains a model epoch by epoch, from what the model does.

    torch's generators are seeded before every epoch, and whatever runs at the end of one (an episode) ends there. So
    the weights, `optimizers` and `tensors()` are all that a continued trial needs, and it comes out with the same bits.

    steps        of an epoch
    taken        steps so far, of all epochs; 0 where they are no measure of anything
    optimizers   by name, besides that of the model
    """

    steps: int
    taken: int = 0
    optimizers: dict[str, Optimizer]
    finished: bool = False  # whether further epochs would teach nothing new; asked after an epoch

    @abstractmethod
    def practise(self, go_on: Work) -> dict[str, float]:
        """One epoch: the loss first, then whatever describes the training. `go_on` is called often, and may raise."""

    @abstractmethod
    def examine(self, part: str) -> dict[str, float]:
        """How good the model is, apart from training: on the "validation" or on the "test" that the seed gives.

        The first value is what selection lowers, the last one ranks. Nothing that training depends on may change.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What training changes besides the weights of the model and the state of the optimizers."""

    @abstractmethod
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave. ValueError, and nothing changed, if they are not of this learner."""

    @abstractmethod
    def seconds(self) -> float:
        """About how long an epoch takes, from a few steps. Spoils the learner: it is for a plan."""

    def baselines(self) -> dict[str, dict[str, float]]:
        """What one gets on the test without a model."""
        return {}

    def exhibit(self) -> dict[str, Any]:
        """What a report may draw of the trained model, as JSON; nothing if there is nothing to see."""
        return {}

    def ask(self, question: str) -> list[tuple[str, float]]:
        """What the trained model says to a person, if the task `answers`: the best first, each with how good it is."""
        raise NotImplementedError

    def renew(self) -> None:  # noqa: B027
        """Optimizers have another learning rate or state than before: what was recorded of them is recorded anew."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything outside of torch."""
