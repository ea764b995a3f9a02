"""The adding problem."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.core.errors import BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task


@task("add", reference="Hochreiter and Schmidhuber 1997; here as in the published arena")
class Add(Task):
    """Add two marked numbers in a long sequence.

        input   (length, 2): a number uniform in [0, 1), and a marker that is 1 at one place of each half, else 0
        target  the sum of the two marked numbers
        loss    mean squared error

    Answering 1 without looking gives the variance of the sum, 1/6.

    Options:
        length: steps; even
        samples: sequences
    """

    def __init__(self, *, length: int = 100, samples: int = 40_000) -> None:
        if length < 2 or length % 2:
            raise BadOption(f"add: length must be even and at least 2, not {length}.")
        if samples < 1:
            raise BadOption(f"add: samples must be at least 1, not {samples}.")
        self.count = samples
        self.spec = TaskSpec(input_shape=(length, 2), output_size=1, target="values")

    def samples(self, rng: np.random.Generator) -> Samples:
        length, half = self.spec.length, self.spec.length // 2
        numbers = rng.random((self.count, length), dtype=np.float32)
        markers = np.zeros_like(numbers)
        places = rng.integers(0, half, size=(2, self.count)) + np.array([[0], [half]])
        rows = np.arange(self.count)
        markers[rows, places[0]] = markers[rows, places[1]] = 1
        sums = numbers[rows, places[0]] + numbers[rows, places[1]]
        return Samples(np.stack([numbers, markers], axis=-1), sums[:, None])
