"""Windows equal those of a naive loop, and never cross a series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnarena.core.errors import BadOption
from nnarena.tasks.windows import check_any, check_choice, check_windows, cut, window_counts

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=8)
SIZES = st.integers(1, 12)


@given(LENGTHS, SIZES, st.integers(1, 7), st.integers(1, 60))
def test_windows_equal_a_naive_loop(lengths, length, stride, most):
    rows = np.arange(3 * sum(lengths), dtype=np.float32).reshape(-1, 3)
    wanted, series, last = [], [], []
    begin = 0
    for place, size in enumerate(lengths):
        for start in range(begin, begin + size - length + 1, stride):
            wanted.append(rows[start : start + length])
            series.append(place)
            last.append(start + length - 1)
        begin += size
    windows = cut(np.array(lengths), length, stride, most)
    assert len(windows) == min(len(wanted), most)
    found = windows.of(rows)
    assert found.shape == (len(windows), length, 3) and found.dtype == np.float32 and found.flags.c_contiguous
    if wanted:
        np.testing.assert_array_equal(found, np.stack(wanted)[:most])
    assert windows.series.tolist() == series[:most]
    assert windows.last.tolist() == last[:most]


@given(LENGTHS, SIZES, st.integers(1, 7))
def test_no_window_crosses_a_series(lengths, length, stride):
    owner = np.repeat(np.arange(len(lengths)), lengths)
    windows = cut(np.array(lengths), length, stride, 10**9)
    inside = windows.of(owner)
    assert (inside == windows.series[:, None]).all()


@given(LENGTHS, SIZES, st.integers(1, 7))
def test_counts(lengths, length, stride):
    wanted = [(size - length) // stride + 1 if size >= length else 0 for size in lengths]
    assert window_counts(np.array(lengths), length, stride).tolist() == wanted
    series = cut(np.array(lengths), length, stride, 10**9).series
    assert np.bincount(series, minlength=len(lengths)).tolist() == wanted


def test_rows_of_a_single_value_and_of_odd_layout():
    rows = np.asfortranarray(np.arange(20.0).reshape(10, 2))
    windows = cut(np.array([10]), 4, 3, 9)
    assert windows.of(np.arange(10)).tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert windows.of(rows).flags.c_contiguous and windows.of(rows)[1, 0].tolist() == [6.0, 7.0]


def test_the_result_is_a_copy():
    rows = np.zeros((10, 2))
    found = cut(np.array([10]), 4, 1, 9).of(rows)
    found[0, 1] = 1
    assert not rows.any() and not found[1].any()


def test_wrong_options():
    for options in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(BadOption, match="above 0"):
            check_windows("t", *options)
    with pytest.raises(BadOption, match="option 'split' takes a or b, not c"):
        check_choice("t", "split", "c", ("a", "b"))
    with pytest.raises(BadOption, match="longest has 7 rows"):
        check_any("t", cut(np.array([3, 7]), 8, 1, 9), np.array([3, 7]))
