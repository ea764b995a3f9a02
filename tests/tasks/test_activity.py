"""Activity: the UCI readings and the smartwatch."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.components import find
from nnarena.core.errors import BadOption, DataError
from nnarena.data import import_files
from nnarena.data.activity import ACTIVITIES, TAGS
from nnarena.data.folder import store
from nnarena.tasks.activity import FOLD, Activity

SERIES = {"B01": 70, "A01": 66, "C05": 10}
START = 633790226051280329


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Readings as UCI writes them, the series interleaved; time passes in steps of 27 ms and more."""
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "store"))
    rng = np.random.default_rng(0)
    order = rng.permutation([name for name, count in SERIES.items() for _ in range(count)])
    rows, clock = [], START
    for name in ["B01", "A01", *order][:-2]:
        clock += int(rng.integers(270_000, 2_000_000))
        place = [f"{value:.16f}" for value in rng.normal(size=3)]
        rows.append([name, rng.choice(TAGS), str(clock), "27.05.2009 14:03:25:127", *place, rng.choice(ACTIVITIES)])
    (tmp_path / "uci.txt").write_text("".join(",".join(row) + "\n" for row in rows))
    import_files("activity", [tmp_path / "uci.txt"])
    return rows


def make(**options):
    return Activity(**options).samples(np.random.default_rng(0))


def test_windows_of_the_uci_file_equal_a_naive_loop(rows):
    inputs, targets, spans, series = [], [], [], []
    for place, name in enumerate(dict.fromkeys(row[0] for row in rows)):
        own = [row for row in rows if row[0] == name]
        for start in range(0, len(own) - 64 + 1, 4):
            window = own[start : start + 64]
            inputs.append([[float(row[1] == tag) for tag in TAGS] + [float(v) for v in row[4:7]] for row in window])
            targets.append(FOLD[window[-1][7]])
            before = own[start - 1 : start + 63] if start else [own[0], *own[:63]]
            spans.append([(int(a[2]) - int(b[2])) / 1e7 for a, b in zip(window, before, strict=True)])
            series.append(place)
    samples = make(elapsed=True)
    assert len(samples) == len(inputs) >= 2
    np.testing.assert_array_equal(samples.inputs, np.array(inputs, np.float32))
    assert samples.inputs.dtype == np.float32 and samples.inputs.shape[1:] == (64, 7)
    assert samples.targets.tolist() == targets and samples.targets.dtype == np.int64
    np.testing.assert_allclose(samples.timespans, np.array(spans), rtol=1e-6)
    assert samples.timespans.dtype == np.float32 and samples.timespans[0, 0] == 0
    assert samples.series.tolist() == series


def test_splits_and_elapsed(rows):
    samples = make(split="published")
    assert samples.series is None and samples.timespans is None
    assert Activity(elapsed=True).spec.timespans and not Activity().spec.timespans


def test_a_clock_that_steps_back_counts_as_no_time(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path))
    arrays = {
        "tag": np.zeros(4, np.uint8),
        "time": START + np.array([0, 10_000_000, 5_000_000, 25_000_000]),
        "position": np.zeros((4, 3), np.float32),
        "activity": np.zeros(4, np.uint8),
        "length": np.array([4]),
        "series": np.array(["A01"]),
    }
    store("activity", arrays, {})
    assert make(length=4, elapsed=True).timespans.tolist() == [[0, 1, 0, 2]]


def test_eleven_activities_fold_into_seven():
    assert FOLD.keys() == set(ACTIVITIES) and set(FOLD.values()) == set(range(7))


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path))
    arrays = {
        "frames": np.arange(6 * 210, dtype=np.float32).reshape(-1, 6),
        "length": np.array([70, 20, 120]),
        "y": np.array([3, 1, 6]),
        "subject": np.array([1, 2, 2]),
        "label": np.array(list("ABCDEFG")),
    }
    store("watch", arrays, {})
    return arrays


def test_the_watch(recordings):
    samples = make(source="watch", elapsed=True)
    assert samples.inputs.shape == (2 + 15, 64, 6)
    np.testing.assert_array_equal(samples.inputs[1], recordings["frames"][4:68])
    np.testing.assert_array_equal(samples.inputs[2], recordings["frames"][90:154])
    assert samples.targets.tolist() == [3] * 2 + [6] * 15
    assert samples.series.tolist() == [0] * 2 + [2] * 15
    assert samples.timespans[0, :2].tolist() == [0, np.float32(0.02)] and (samples.timespans[1] > 0).all()
    assert len(make(source="watch", samples=3)) == 3


def test_the_specification_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "empty"))
    for source, size, name in (("uci", 7, "activity"), ("watch", 6, "watch")):
        spec = Activity(source=source).spec
        assert (spec.input_shape, spec.output_size, spec.target) == ((64, size), 7, "class")
        with pytest.raises(DataError, match=f"`nnarena data get {name}`"):
            make(source=source)


@pytest.mark.parametrize("options", [{"length": 0}, {"stride": -1}, {"samples": 0}, {"split": "x"}, {"source": "x"}])
def test_wrong_options(options):
    with pytest.raises(BadOption, match=f"'{next(iter(options))}'"):
        Activity(**options)


def test_a_length_that_no_series_has(recordings):
    with pytest.raises(BadOption, match="the longest has 120 rows"):
        make(source="watch", length=121)


def test_every_option_is_described():
    assert all(option.doc for option in find("task", "activity").options)


@pytest.mark.data
def test_the_real_recordings():
    samples = make(source="watch", samples=10**9)
    assert samples.inputs.shape == (58_878, 64, 6) and len(np.unique(samples.series)) == 140
    assert (np.bincount(samples.targets) > 6_000).all()
    assert len(np.unique(make(source="watch").series)) == 94
