"""Whether a model has collapsed: whatever it is shown, it answers the same class.

    collapsed  ⇔  argmax f(x) is one class for every x of the test, while the test has several

f are the weights that are tested. There is no threshold in it and no luck: one other answer, and it has not collapsed.
A network whose units are all dead, or whose gradients have vanished before anything was learned, ends like this, with
the loss and the accuracy of the best constant answer. One that only learned nothing, and answers this and that, has
not collapsed: its accuracy stands beside the baselines'. Neither is a failure: the trial is done, and counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnarena.core.spec import TaskSpec


class Answers:
    """The classes that a model answers, seen batch by batch; they stay on the device until somebody asks."""

    def __init__(self, spec: TaskSpec) -> None:
        self.are_classes = spec.target == "class" and spec.output_size > 1
        self.ends: list[Tensor] = []

    def see(self, prediction: Tensor) -> None:
        """Of a batch: (B, …, classes)."""
        if self.are_classes:
            self.ends.append(torch.stack(torch.aminmax(prediction.argmax(-1))))

    def have_collapsed(self, targets: Tensor) -> bool | None:
        """Whether all answers to samples with these targets were the same; None if that cannot be told.

        It cannot where answers are not classes, where nothing was seen, and where one class is all there is to answer.
        """
        if not self.ends or bool((targets == targets.flatten()[0]).all()):
            return None
        ends = torch.stack(self.ends)
        return bool((ends == ends[0, 0]).all())
