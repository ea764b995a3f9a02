"""The task copy: a sequence of symbols into another."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.tasks.transduce import Transduction


@task("copy", reference="Graves et al. 2014, Neural Turing Machines")
class Copy(Transduction):
    """Write down what was read.

        input   (length,): between `shortest` and `length` symbols, padded in front
        target  (length + 1,): the same symbols, END, padding
        loss    cross entropy over tokens, padding left out

    A sequence counts as right (`exact_match`) if every token is, END among them.
    """

    def turn(self, symbols: np.ndarray) -> np.ndarray:
        return symbols
