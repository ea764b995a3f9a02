from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnarena.report.numbers import interval, number, whole, with_spread

ANY = st.floats(-1e300, 1e300, allow_subnormal=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.935, "0.935"),
        (4.28123, "4.28"),
        (0.0012, "0.00120"),
        (1234.4, "1234"),
        (0.0, "0"),
        (9.999, "10.0"),
        (1.2e-5, "1.20e-5"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
    ],
)
def test_a_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.93512, 0.00612, "0.9351 ± 0.0061"),
        (1234.5, 56.7, "1234 ± 57"),
        (0.0012, 0.0001, "0.00120 ± 0.00010"),
        (0.00012, 0.00001, "(1.20 ± 0.10)e-4"),
        (4.28, 1e-9, "4.28000 ± 1.0e-9"),
        (0.5, None, "0.500"),
        (0.5, 0.0, "0.500 ± 0"),
        (None, None, "–"),
    ],
)
def test_a_number_with_its_spread(mean: float | None, std: float | None, text: str) -> None:
    assert with_spread(mean, std) == text


def test_intervals_and_counts() -> None:
    assert interval(0.9219, 0.9493) == "[0.922, 0.949]"
    assert interval(None, None) == "–"
    assert interval(-0.003, 0.33) == "[0.00, 0.33]"
    assert interval(0.5, 0.5) == "[0.500, 0.500]"
    assert whole(20241) == "20,241"
    assert whole(None) == "–"


@given(ANY)
def test_a_number_is_never_off_by_more_than_half_a_per_cent(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, rel=0.00501)


@given(ANY, st.floats(0, 1e300, allow_subnormal=False))
def test_the_spread_is_never_lost(mean: float, std: float) -> None:
    text = with_spread(mean, std)
    factor = 1.0
    if match := re.fullmatch(r"\((.*)\)e(-?\d+)", text):
        text, factor = match[1], float(f"1e{match[2]}")
    shown_mean, shown_std = (float(part) for part in text.split(" ± "))
    assert shown_std * factor == pytest.approx(std, rel=0.051)
    assert shown_mean * factor == pytest.approx(mean, abs=0.06 * std, rel=0.00501)


@given(ANY, ANY)
def test_an_interval_reads_back(one: float, other: float) -> None:
    low, high = sorted((one, other))
    shown = [float(part) for part in interval(low, high)[1:-1].split(", ")]
    assert shown[0] <= shown[1]
    assert shown == pytest.approx([low, high], abs=0.06 * (high - low), rel=0.00501)
