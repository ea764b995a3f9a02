from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from nnarena.report.strips import WIDTH, axis, scale, strip

VALUES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=9)


@given(VALUES, VALUES, VALUES, st.booleans())
def test_everything_is_drawn_inside(seeds: list[float], extras: list[float], ends: list[float], log: bool) -> None:
    found = axis(seeds, extras, ends, log)
    assert found is not None and found.low < found.high
    for value in [*seeds, *extras, *ends, -1.0]:
        assert 0 <= found.place(value) <= WIDTH
    assert all(not found.beyond(value) for value in seeds)
    assert all(math.isfinite(tick) for tick in found.ticks()) and len(found.ticks()) <= 6
    assert "nan" not in scale(found) + strip(found, seeds, seeds[0], (min(ends), max(ends)), extras[0], "")


def test_larger_values_stand_further_right() -> None:
    found = axis([1, 2, 3], [], [], may_be_log=False)
    assert found is not None and found.place(1) < found.place(2) < found.place(3)


def test_values_over_decades_have_a_logarithmic_axis() -> None:
    found = axis([0.001, 1.0], [], [-1.0], may_be_log=True)
    assert found is not None and found.log
    assert found.ticks() == [0.001, 0.01, 0.1, 1.0]


def test_a_far_baseline_does_not_squash_the_seeds_and_is_an_arrow() -> None:
    found = axis([0.93, 0.94], [0.1], [], may_be_log=False)
    assert found is not None and found.beyond(0.1) == -1
    assert "<circle" not in strip(found, [], 0.1, None, None, "baseline")


def test_nothing_to_show() -> None:
    assert axis([], [1.0], [], may_be_log=True) is None
