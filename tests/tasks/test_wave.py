"""The wave problem against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nnarena.core.errors import BadOption
from nnarena.tasks.wave import Wave


@pytest.mark.parametrize(("length", "cycles"), [(50, 3.0), (2, 1.0), (9, 2.5)])
def test_every_sample_is_what_the_docstring_says(length, cycles):
    samples = Wave(length=length, cycles=cycles, samples=7).samples(np.random.default_rng(0))
    assert samples.inputs.shape == (7, length, 4) and samples.targets.shape == (7, length, 1)
    assert samples.inputs.dtype == samples.targets.dtype == np.float32
    for sequence, targets in zip(samples.inputs.tolist(), samples.targets.tolist(), strict=True):
        one, height, speed, phase = sequence[0]
        assert one == 1 and 0.5 <= height <= 1 and 1 <= speed <= cycles and 0 <= phase <= 1
        assert not any(map(any, sequence[1:])), "nothing is told later"
        for step, (value,) in enumerate(targets):
            assert value == pytest.approx(height * math.sin(2 * math.pi * (speed * step / length + phase)), abs=1e-5)


def test_the_mean_has_half_of_the_mean_square_of_the_height():
    task = Wave(samples=4000)
    samples = task.samples(np.random.default_rng(0))
    assert task.baselines(samples, samples)["mean"]["mse"] == pytest.approx(7 / 24, rel=0.03)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 1}, "length must be at least 2, not 1"),
        ({"cycles": 0.5}, "cycles must be from 1 to half of the 50 steps, not 0.5"),
        ({"length": 10, "cycles": 6}, "half of the 10 steps, not 6"),
        ({"samples": 0}, "samples must be at least 1, not 0"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(BadOption, match=words):
        Wave(**options)
