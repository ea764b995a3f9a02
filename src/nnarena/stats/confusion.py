"""Which classes are taken for which: counts of answers, by what was true."""

from __future__ import annotations

import numpy as np


def confusion(targets: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """C[i, j] = how many samples of class i were answered with class j, (K, K)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (targets, answers), 1)
    return counts


def shares(counts: np.ndarray) -> np.ndarray:
    """C[i, j] / Σ_j C[i, j]; rows of classes that did not occur are zero."""
    total = counts.sum(1, keepdims=True)
    return np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)


def most_confused(counts: np.ndarray, most: int) -> list[tuple[int, int, int]]:
    """The largest entries beside the diagonal as (true, answered, how many), at most `most` of them."""
    off = counts.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[:most]
    pairs = zip(*np.unravel_index(order, off.shape), strict=True)
    return [(int(i), int(j), int(off[i, j])) for i, j in pairs if off[i, j]]
