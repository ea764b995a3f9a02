"""The task sort: a sequence of symbols into another."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.tasks.transduce import Transduction


@task("sort", reference="Vinyals et al. 2015, Order matters; here with symbols for numbers")
class Sort(Transduction):
    """Write what was read in ascending order, repeated symbols as often as they came.

        input   (length,): between `shortest` and `length` symbols, padded in front
        target  (length + 1,): the symbols in ascending order, END, padding
        loss    cross entropy over tokens, padding left out

    A sequence counts as right (`exact_match`) if every token is, END among them.
    """

    def turn(self, symbols: np.ndarray) -> np.ndarray:
        return np.sort(symbols)
