"""Test, validation and training: disjoint, in whole batches, and no series on two sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnarena.core.errors import ArenaError
from nnarena.core.protocol import PUBLISHED, Protocol
from nnarena.engine.splits import split


def rng(seed=0):
    return np.random.default_rng(seed)


def parts(found):
    return [found.test, found.validation, found.train]


def test_the_published_sizes():
    found = split(40_000, None, PUBLISHED, rng())
    assert [len(part) for part in parts(found)] == [3_968, 3_968, 32_000]
    assert len(set(np.concatenate(parts(found)))) == 39_936


def test_the_order_is_one_common_shuffle():
    found = split(40_000, None, PUBLISHED, rng(5))
    np.testing.assert_array_equal(np.concatenate(parts(found)), rng(5).permutation(40_000)[:39_936])


@given(
    count=st.integers(1, 500),
    batch=st.integers(1, 20),
    test=st.floats(0.05, 0.4),
    validation=st.floats(0.05, 0.4),
    seed=st.integers(0, 9),
)
def test_parts_are_disjoint_whole_batches_of_the_asked_size(count, batch, test, validation, seed):
    protocol = Protocol(batch_size=batch, test_fraction=test, validation_fraction=validation)
    try:
        found = split(count, None, protocol, rng(seed))
    except ArenaError as error:
        assert str(count) in str(error)
        assert int(count * min(test, validation)) < batch or count - 2 * batch < 2 * batch
        return
    every = np.concatenate(parts(found))
    assert len(set(every)) == len(every) and set(every) <= set(range(count))
    assert all(len(part) > 0 and len(part) % batch == 0 for part in parts(found))
    assert len(found.test) == int(count * test) // batch * batch
    assert len(found.validation) == int(count * validation) // batch * batch
    assert len(every) > count - batch, "only what does not fill a batch is left out"


@given(st.lists(st.integers(1, 30), min_size=1, max_size=25), st.integers(1, 8), st.integers(0, 99))
def test_a_series_is_never_shared(lengths, batch, seed):
    series = np.repeat(np.arange(len(lengths)), lengths)
    series = rng(seed).permutation(series)
    try:
        found = split(len(series), series, Protocol(batch_size=batch), rng(seed))
    except ArenaError as error:
        assert str(len(series)) in str(error)
        return
    owners = [set(series[part]) for part in parts(found)]
    assert not owners[0] & owners[1] and not owners[0] & owners[2] and not owners[1] & owners[2]
    every = np.concatenate(parts(found))
    assert len(set(every)) == len(every)
    assert all(len(part) > 0 and len(part) % batch == 0 for part in parts(found))
    assert len(found.test) == len(found.validation) == int(0.1 * len(series)) // batch * batch
    left_out = len(series) - len(every)
    assert left_out < 2 * max(lengths) + batch, "only what is over at the borders may be dropped"


def test_names_of_series_may_be_texts():
    series = np.repeat([f"person {number}" for number in range(40)], 10)
    found = split(400, series, Protocol(batch_size=8), rng())
    assert not set(series[found.test]) & set(series[found.train])


def test_windows_of_a_series_are_shuffled():
    found = split(4000, np.arange(4000) // 100, Protocol(batch_size=10), rng())
    assert (np.diff(found.train) < 0).mean() > 0.3


def test_the_generator_decides():
    one, same, other = (split(1000, np.arange(1000) // 7, Protocol(batch_size=10), rng(s)) for s in (0, 0, 1))
    for a, b in zip(parts(one), parts(same), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one.train, other.train)


def test_too_few_samples_say_how_many_are_needed():
    with pytest.raises(ArenaError, match=r"1000 samples are too few: .* 128 each, so at least 1280 samples"):
        split(1000, None, PUBLISHED, rng())
    split(1280, None, PUBLISHED, rng())


def test_too_few_series_say_so():
    with pytest.raises(ArenaError, match="2000 samples in 1 series leave nothing to train on"):
        split(2000, np.zeros(2000), PUBLISHED, rng())


def test_what_was_set_aside_is_the_test_and_one_shuffle_parts_the_others():
    aside = np.arange(2000) % 5 == 0
    found = split(2000, None, Protocol(batch_size=16), rng(3), aside)
    np.testing.assert_array_equal(found.test, np.flatnonzero(aside))
    shuffled = rng(3).permutation(np.flatnonzero(~aside))
    np.testing.assert_array_equal(np.concatenate([found.validation, found.train]), shuffled)
    assert len(found.validation) == 160


@given(st.lists(st.integers(1, 30), min_size=2, max_size=25), st.integers(1, 8), st.integers(0, 99))
def test_no_series_is_shared_where_some_are_set_aside(lengths, batch, seed):
    series = np.repeat(np.arange(len(lengths)), lengths)
    aside = series >= len(lengths) - 1 - len(lengths) // 5
    try:
        found = split(len(series), series, Protocol(batch_size=batch), rng(seed), aside)
    except ArenaError as error:
        assert "too few" in str(error)
        return
    np.testing.assert_array_equal(found.test, np.flatnonzero(aside))
    owners = [set(series[part]) for part in parts(found)]
    assert not owners[0] & owners[1] and not owners[0] & owners[2] and not owners[1] & owners[2]
    assert len(found.validation) == int(0.1 * (~aside).sum()) // batch * batch and len(found.train) % batch == 0
    left_out = (~aside).sum() - len(found.validation) - len(found.train)
    assert left_out < max(lengths) + batch
