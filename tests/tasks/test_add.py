"""The adding problem against a loop."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.errors import BadOption
from nnarena.tasks.add import Add


@pytest.mark.parametrize(("length", "count"), [(2, 50), (6, 300), (100, 500)])
def test_every_sample_is_what_the_docstring_says(length, count):
    task = Add(length=length, samples=count)
    samples = task.samples(np.random.default_rng(3))
    assert samples.inputs.shape == (count, length, 2) and samples.targets.shape == (count, 1)
    assert samples.inputs.dtype == samples.targets.dtype == np.float32
    assert samples.series is None and samples.timespans is None
    for (numbers, markers), target in zip(samples.inputs.transpose(0, 2, 1), samples.targets, strict=True):
        assert all(0 <= number < 1 for number in numbers)
        marked = [place for place in range(length) if markers[place] != 0]
        assert len(marked) == 2 and all(markers[place] == 1 for place in marked)
        assert marked[0] < length // 2 <= marked[1]
        assert target[0] == pytest.approx(numbers[marked[0]] + numbers[marked[1]], abs=1e-6)


def test_every_place_is_marked_equally_often_and_numbers_are_uniform():
    samples = Add(length=10, samples=20_000).samples(np.random.default_rng(0))
    shares = samples.inputs[..., 1].mean(0)
    np.testing.assert_allclose(shares, 0.2, atol=0.02)
    numbers = samples.inputs[..., 0]
    assert numbers.mean() == pytest.approx(0.5, abs=0.005) and numbers.var() == pytest.approx(1 / 12, abs=0.002)


def test_answering_the_mean_gives_a_sixth():
    task = Add(length=10, samples=20_000)
    samples = task.samples(np.random.default_rng(0))
    (score,) = task.baselines(samples, samples).values()
    assert score["mse"] == pytest.approx(1 / 6, rel=0.03)


def test_the_published_size_is_the_default():
    task = Add()
    assert (task.spec.input_shape, task.spec.output_size, task.spec.target) == ((100, 2), 1, "values")
    assert task.count == 40_000


@pytest.mark.parametrize("options", [{"length": 0}, {"length": 7}, {"length": -2}, {"samples": 0}, {"samples": -1}])
def test_wrong_options_are_named(options):
    with pytest.raises(BadOption, match=f"add: .*{next(iter(options))}"):
        Add(**options)
