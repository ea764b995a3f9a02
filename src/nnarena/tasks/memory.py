"""The memory problem: recall a symbol after a long stretch of nothing."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.core.errors import BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task


@task("memory", reference="the published arena, after the copy problem of Hochreiter and Schmidhuber 1997")
class Memory(Task):
    """Store symbols, sit through fillers, and recall the one that is asked for.

        input   (symbols + length + 1, 1): the symbols, `length` fillers of value `categories`, the index to recall;
                all as plain numbers
        target  the symbol at that index
        loss    cross entropy

    Options:
        length: fillers between the symbols and the question
        symbols: symbols to remember; with one, the index is always 0
        categories: how many different symbols there are
        samples: sequences
    """

    def __init__(self, *, length: int = 100, symbols: int = 1, categories: int = 10, samples: int = 40_000) -> None:
        if length < 0 or symbols < 1 or categories < 2:
            raise BadOption("memory: length must not be negative, symbols at least 1 and categories at least 2.")
        if samples < 1:
            raise BadOption(f"memory: samples must be at least 1, not {samples}.")
        self.count, self.symbols, self.fillers = samples, symbols, length
        self.spec = TaskSpec(input_shape=(symbols + length + 1, 1), output_size=categories, target="class")

    def samples(self, rng: np.random.Generator) -> Samples:
        categories = self.spec.output_size
        symbols = rng.integers(0, categories, size=(self.count, self.symbols))
        question = rng.integers(0, self.symbols, size=(self.count, 1))
        fillers = np.full((self.count, self.fillers), categories)
        inputs = np.concatenate([symbols, fillers, question], axis=1)
        targets = np.take_along_axis(symbols, question, axis=1)[:, 0]
        return Samples(inputs[..., None].astype(np.float32), targets)
