from __future__ import annotations

import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from nnarena.stats.intervals import mean
from nnarena.stats.verdicts import RULE, margin, reproduced, resolution


@pytest.mark.parametrize(
    ("printed", "rounding"), [("0.935", 0.0005), ("12", 0.5), ("1.0", 0.05), ("0.000", 0.0005), ("1.20e-5", 5e-8)]
)
def test_the_rounding_of_a_printed_figure(printed: str, rounding: float) -> None:
    assert resolution(printed) == rounding


def test_a_reproduction_by_hand() -> None:
    # Ours 0.936 ± 0.005, theirs 0.935 ± 0.006, three runs each: standard error √((25 + 36) / 3)e-3 = 0.004509,
    # ν = 3.87, t = 2.813, half width 0.01269 about 0.001. The margin is 10 % of 0.935.
    found = reproduced(0.935, 0.006, 3, [0.931, 0.936, 0.941], 0.0005, "higher")
    assert found.text == "reproduced"
    assert (found.low, found.high) == (pytest.approx(-0.01169, abs=2e-5), pytest.approx(0.01369, abs=2e-5))
    assert found.margin == pytest.approx(0.0935)


def test_the_direction_of_a_failure_depends_on_the_metric() -> None:
    ours = [0.90, 0.901, 0.902]
    assert reproduced(0.935, 0.001, 3, ours, 0.0005, "higher").text == "not reproduced: worse"
    assert reproduced(0.935, 0.001, 3, ours, 0.0005, "lower").text == "not reproduced: better"
    assert reproduced(0.935, 0.001, 3, ours, 0.0005, "neither").text == "not reproduced: lower"


def test_rounding_is_given_the_benefit_of_the_doubt() -> None:
    # Printed as 0.001 ± 0.000: anything from 0.0005 to 0.0015 may have been meant.
    assert reproduced(0.001, 0.0, 3, [0.0014, 0.0014], 0.0005).text == "reproduced"
    assert reproduced(0.935, 0.0, 3, [0.9355, 0.9355], 0.0005).text == "reproduced"
    assert reproduced(0.001, 0.0, 3, [0.0016, 0.0016], 0.0005).text == "not reproduced: worse"


def test_an_interval_that_contains_anything_is_no_reproduction() -> None:
    # The published spread says nothing: two runs succeeded and one did not.
    assert reproduced(0.699, 0.521, 3, [0.1, 1.0, 1.0], 0.0005, "higher").text == "undecided"
    # Ours says nothing.
    assert reproduced(0.935, 0.006, 3, [0.2, 0.99, 0.9], 0.0005, "higher").text == "undecided"


def test_too_little_evidence() -> None:
    assert reproduced(0.9, 0.1, 3, [0.9]).text == "undecided"
    assert reproduced(0.9, 0.1, 3, []).text == "undecided"
    assert reproduced(0.9, None, 3, [0.9, 0.9]).text == "undecided"
    assert reproduced(0.9, 0.1, 1, [0.9, 0.9]).text == "undecided"


def test_the_margin_in_words_is_the_margin_in_numbers() -> None:
    assert margin(1.0, 0.01, 0.0005) == 0.1  # ten per cent of the mean
    assert margin(0.019, 0.003, 0.0005) == pytest.approx(0.009)  # three standard deviations
    assert margin(0.066, 0.085, 0.0005) == pytest.approx(0.033)  # but at most half of the mean
    assert margin(0.0, 0.0, 0.0005) == 0.0005  # and never finer than the print
    assert "half of the published mean" in RULE and "ten per cent" in RULE


RUNS = st.lists(st.integers(100, 10_000).map(lambda number: number / 1000), min_size=2, max_size=8)


@given(st.floats(0.1, 10), st.floats(0.001, 5), st.integers(2, 9), RUNS)
def test_not_reproduced_is_a_significant_difference(center: float, std: float, runs: int, ours: list[float]) -> None:
    assume(min(ours) < max(ours))
    spread = scipy.stats.tstd(ours)
    p = scipy.stats.ttest_ind_from_stats(mean(ours), spread, len(ours), center, std, runs, equal_var=False).pvalue
    assume(abs(p - 0.05) > 1e-6)
    found = reproduced(center, std, runs, ours, 0.0, "lower")
    assert found.text.startswith("not reproduced") == (p < 0.05)
    if found.text == "reproduced":
        assert found.low is not None and found.high is not None and found.margin is not None
        assert (found.high - found.low) / 2 <= found.margin
        assert found.margin <= max(abs(center) / 2, 3 * std)


@given(st.floats(0.1, 10), st.floats(0.001, 5), RUNS, st.floats(0, 0.1), st.floats(0, 1))
def test_coarser_print_never_turns_agreement_into_disagreement(
    center: float, std: float, ours: list[float], rounding: float, more: float
) -> None:
    fine = reproduced(center, std, 3, ours, rounding).text
    coarse = reproduced(center, std, 3, ours, rounding + more).text
    assert not (fine == "reproduced" and coarse != "reproduced")
    assert not (not fine.startswith("not") and coarse.startswith("not"))
