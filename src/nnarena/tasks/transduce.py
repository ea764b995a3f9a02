"""What tasks share that turn a short sequence of symbols into another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnarena.core.errors import BadOption
from nnarena.core.spec import END, PADDING, SPECIAL, Samples, TaskSpec
from nnarena.core.task import Task


class Transduction(Task):
    """A subclass says by `turn` what becomes of a sequence.

        input   (length,): between `shortest` and `length` symbols, padded in front
        target  (length + 1,): the symbols as they are asked for, END, padding
        loss    cross entropy over tokens, padding left out

    Symbols are drawn uniformly. A sequence counts as right (`exact_match`) if every token is, END among them.

    Options:
        length: symbols at most
        shortest: symbols at least
        symbols: how many different symbols there are
        samples: sequences
    """

    def __init__(self, *, length: int = 10, shortest: int = 5, symbols: int = 10, samples: int = 20_000) -> None:
        name = type(self).__name__.lower()
        if not 1 <= shortest <= length:
            raise BadOption(f"{name}: shortest must be at least 1 and at most length={length}, not {shortest}.")
        if symbols < 2:
            raise BadOption(f"{name}: symbols must be at least 2, not {symbols}.")
        if samples < 1:
            raise BadOption(f"{name}: samples must be at least 1, not {samples}.")
        self.count, self.shortest, self.symbols = samples, shortest, symbols
        self.spec = TaskSpec(
            input_shape=(length,),
            output_size=SPECIAL + symbols,
            target="tokens",
            vocabulary=SPECIAL + symbols,
            target_length=length + 1,
        )

    def turn(self, symbols: np.ndarray) -> np.ndarray:
        """What is to be written when these are read."""
        raise NotImplementedError

    def samples(self, rng: np.random.Generator) -> Samples:
        longest = self.spec.input_shape[0]
        drawn = rng.integers(SPECIAL, SPECIAL + self.symbols, (self.count, longest))
        lengths = rng.integers(self.shortest, longest + 1, self.count)
        sources = [row[:length] for row, length in zip(drawn, lengths, strict=True)]
        return pad(sources, [self.turn(source) for source in sources], self.spec)


def pad(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], spec: TaskSpec) -> Samples:
    """Tokens of different lengths as arrays: sources padded in front, targets with END and padded behind."""
    x = np.full((len(sources), *spec.input_shape), PADDING)
    y = np.full((len(targets), spec.target_length), PADDING)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        x[row, x.shape[1] - len(source) :] = source
        y[row, : len(target)] = target
        y[row, len(target)] = END
    return Samples(x, y)
