from __future__ import annotations

import math

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from nnarena.stats.intervals import estimate, mean, sample_std, welch

# On a grid, so that a spread is not one that scipy warns of losing in rounding.
VALUE = st.integers(-1_000_000, 1_000_000).map(lambda number: number / 1000)
VALUES = st.lists(VALUE, min_size=2, max_size=12).filter(lambda values: min(values) < max(values))


def test_three_values_by_hand() -> None:
    # mean 2, std 1, t(0.975, 2) = 4.3027, half width 4.3027 / √3 = 2.4841
    found = estimate([1.0, 2.0, 3.0])
    assert (found.n, found.mean, found.std) == (3, 2.0, 1.0)
    assert (found.low, found.high) == (pytest.approx(-0.48414, abs=1e-5), pytest.approx(4.48414, abs=1e-5))
    assert list(found.as_dict()) == ["mean", "std", "low", "high"]


def test_one_value_has_no_interval_and_none_has_nothing() -> None:
    assert estimate([0.5]).as_dict() == {"mean": 0.5, "std": None, "low": None, "high": None}
    assert estimate([]).as_dict() == {"mean": None, "std": None, "low": None, "high": None}
    with pytest.raises(ValueError, match="mean"):
        mean([])


def test_equal_values_have_no_spread_at_all() -> None:
    assert estimate([0.1] * 3).as_dict() == {"mean": 0.1, "std": 0.0, "low": 0.1, "high": 0.1}


@given(VALUES)
def test_the_interval_is_that_of_scipy(values: list[float]) -> None:
    found = estimate(values)
    assert found.mean is not None and found.std is not None
    error = found.std / math.sqrt(found.n)
    size = max(map(abs, values))
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-9 * size + 1e-300)
    assert found.std == pytest.approx(scipy.stats.tstd(values), rel=1e-6, abs=1e-9 * size)
    if error > 0:
        low, high = scipy.stats.t.interval(0.95, found.n - 1, loc=found.mean, scale=error)
        assert (found.low, found.high) == (pytest.approx(low, rel=1e-9), pytest.approx(high, rel=1e-9))


@given(VALUES, VALUES)
def test_the_interval_of_a_difference_is_that_of_scipy(ours: list[float], theirs: list[float]) -> None:
    first, second = estimate(ours), estimate(theirs)
    assert first.mean is not None and second.mean is not None and first.std is not None and second.std is not None
    found = welch(first.mean, first.std, first.n, second.mean, second.std, second.n)
    scale = max(map(abs, ours + theirs))
    known = scipy.stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert found.low == pytest.approx(known.low, rel=1e-5, abs=1e-6 * scale)
    assert found.high == pytest.approx(known.high, rel=1e-5, abs=1e-6 * scale)


@given(VALUES, VALUES)
def test_swapping_the_sides_mirrors_the_interval(ours: list[float], theirs: list[float]) -> None:
    a = [(mean(values), sample_std(values) or 0.0, len(values)) for values in (ours, theirs)]
    one, other = welch(*a[0], *a[1]), welch(*a[1], *a[0])
    assert (one.low, one.high) == (pytest.approx(-other.high), pytest.approx(-other.low))


def test_sides_without_spread() -> None:
    assert welch(2.0, 0.0, 3, 1.0, 0.0, 3).half_width == 0
    # Only one side varies: it alone gives the degrees of freedom.
    assert welch(2.0, 1.0, 3, 1.0, 0.0, 9).degrees == pytest.approx(2)
    with pytest.raises(ValueError, match="two values"):
        welch(1.0, 1.0, 1, 1.0, 1.0, 3)
