"""The cell problem: a pulse decides which of two neurons stays high."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.core.errors import BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task


@task("cell", reference="the published arena")
class Cell(Task):
    """Hold one of two states for a long time, and switch on a pulse.

        input   (phases · length, 2): at the first step of every phase a 1 on one of two lines, else 0; the lines
                take turns, and every other sample begins with the other line
        target  (phases · length, 2): 1 on the line that was pulsed last, 0 on the other, at every step
        loss    mean squared error over all steps

    Only two different sequences exist; the task asks whether a cell can hold a state, not whether it generalises.

    Options:
        length: steps of a phase
        phases: how many phases follow each other
        samples: sequences
    """

    def __init__(self, *, length: int = 128, phases: int = 3, samples: int = 40_000) -> None:
        if length < 1 or phases < 1:
            raise BadOption("cell: length and phases must be at least 1.")
        if samples < 1:
            raise BadOption(f"cell: samples must be at least 1, not {samples}.")
        self.count, self.phases, self.hold = samples, phases, length
        self.spec = TaskSpec(input_shape=(phases * length, 2), output_size=2, target="values", per_step=True)

    def samples(self, rng: np.random.Generator) -> Samples:
        first = np.arange(self.count)[:, None] % 2
        line = np.repeat((first + np.arange(self.phases)) % 2, self.hold, axis=1)
        targets = np.stack([line == 0, line == 1], axis=-1).astype(np.float32)
        pulses = np.zeros_like(targets)
        pulses[:, :: self.hold] = targets[:, :: self.hold]
        return Samples(pulses, targets)
