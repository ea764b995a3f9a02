"""Whether a model has collapsed: whatever it is shown, it answers the same class, or does so almost always.

    collapsed  ⇔  1 − s ≤ (1 − m) / 10

s is the share of the most frequent answer among the answers to the test, m that of the most frequent class among its
targets: a collapsed model departs from its favourite class at most a tenth as often as the truth does from its own. It
then has no more than a tenth of what a model can gain over the best constant answer:

    accuracy ≤ m + (1 − m) / 10

A network whose units are dead, or whose gradients have vanished before anything was learned, ends like this. Often not
quite: a unit that is still alive for a few odd images makes a few other answers, so that "one class for all" would miss
it. One that learned nothing and answers this and that has not collapsed: its accuracy stands beside the baselines'.
Neither is a failure: the trial is done, and counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnarena.core.spec import TaskSpec

DEPARTURES = 10  # of the truth, for at most one of the model


class Answers:
    """The classes that a model answers, seen batch by batch."""

    def __init__(self, spec: TaskSpec) -> None:
        self.are_classes = spec.target == "class" and spec.output_size > 1
        self.seen: list[Tensor] = []

    def see(self, prediction: Tensor) -> None:
        """Of a batch: (B, …, classes)."""
        if self.are_classes:
            self.seen.append(prediction.argmax(-1).flatten())

    def have_collapsed(self, targets: Tensor) -> bool | None:
        """Whether the answers to samples with these targets are those of a collapsed model; None if none can tell.

        It cannot be told where answers are not classes, where nothing was seen, and where one class is all there is.
        """
        if not self.seen:
            return None
        answers, truth = departures(torch.cat(self.seen)), departures(targets.flatten())
        return DEPARTURES * answers <= truth if truth else None


def departures(classes: Tensor) -> int:
    """How many are not of the most frequent class."""
    return classes.numel() - int(classes.cpu().bincount().max())
