"""The task reverse: a sequence of symbols into another."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.tasks.transduce import Transduction


@task("reverse", reference="Grefenstette et al. 2015, Learning to transduce with unbounded memory, NeurIPS")
class Reverse(Transduction):
    """Write what was read, the last symbol first.

        input   (length,): between `shortest` and `length` symbols, padded in front
        target  (length + 1,): the symbols from the last to the first, END, padding
        loss    cross entropy over tokens, padding left out

    A sequence counts as right (`exact_match`) if every token is, END among them.
    """

    def turn(self, symbols: np.ndarray) -> np.ndarray:
        return symbols[::-1]
