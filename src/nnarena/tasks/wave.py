"""The wave problem: one look at three numbers, then a whole sequence to be told."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.core.errors import BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task


@task("wave", reference="Karpathy 2015, The unreasonable effectiveness of recurrent neural networks: from one to many")
class Wave(Task):
    """From one to many: draw a wave of which the first step alone tells the height, the speed and the beginning.

        input   (length, 4): at the first step 1, a, c and p; else 0
        target  (length, 1): a sin(2π (c t / length + p)) at step t
        loss    mean squared error over all steps

    a between ½ and 1, c between 1 and `cycles`, p between 0 and 1, all drawn evenly. The mean has an mse of about 0.29:
    half of E a².

    Options:
        length: steps
        cycles: waves in a sequence at most
        samples: sequences
    """

    def __init__(self, *, length: int = 50, cycles: float = 3.0, samples: int = 10_000) -> None:
        if length < 2:
            raise BadOption(f"wave: length must be at least 2, not {length}.")
        if not 1 <= cycles <= length / 2:
            raise BadOption(f"wave: cycles must be from 1 to half of the {length} steps, not {cycles:g}.")
        if samples < 1:
            raise BadOption(f"wave: samples must be at least 1, not {samples}.")
        self.count, self.cycles = samples, cycles
        self.spec = TaskSpec(input_shape=(length, 4), output_size=1, target="values", per_step=True)

    def samples(self, rng: np.random.Generator) -> Samples:
        height, phase = rng.uniform(0.5, 1, self.count), rng.uniform(0, 1, self.count)
        speed = rng.uniform(1, self.cycles, self.count)
        inputs = np.zeros((self.count, *self.spec.input_shape), np.float32)
        inputs[:, 0] = np.stack([np.ones(self.count), height, speed, phase], axis=-1)
        turns = speed[:, None] * np.arange(self.spec.length) / self.spec.length + phase[:, None]
        targets = height[:, None] * np.sin(2 * np.pi * turns)
        return Samples(inputs, targets[..., None].astype(np.float32))
