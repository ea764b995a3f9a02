"""Counts of answers by what was true."""

from __future__ import annotations

import numpy as np

from nnarena.stats.confusion import confusion, most_confused, shares


def test_every_answer_is_counted_where_it_belongs() -> None:
    rng = np.random.default_rng(0)
    targets, answers = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    counts = confusion(targets, answers, 5)
    for i in range(5):
        for j in range(5):
            pairs = zip(targets, answers, strict=True)
            assert counts[i, j] == sum((true, said) == (i, j) for true, said in pairs)


def test_shares_are_of_rows_and_an_absent_class_has_none() -> None:
    counts = np.array([[3, 1], [0, 0]])
    assert shares(counts).tolist() == [[0.75, 0.25], [0, 0]]


def test_the_most_frequent_confusions_come_first() -> None:
    counts = np.array([[90, 2, 0], [7, 1, 7], [0, 1, 50]])
    assert most_confused(counts, 3) == [(1, 0, 7), (1, 2, 7), (0, 1, 2)]
    assert most_confused(counts, 99)[-1] == (2, 1, 1) and len(most_confused(counts, 99)) == 4
    assert most_confused(np.diag([3, 4]), 5) == [] and counts[0, 0] == 90
