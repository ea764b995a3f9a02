"""The memory problem against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nnarena.core.errors import BadOption
from nnarena.tasks.memory import Memory


@pytest.mark.parametrize(("length", "symbols", "categories"), [(100, 1, 10), (0, 1, 2), (5, 4, 3), (3, 2, 10)])
def test_every_sample_is_what_the_docstring_says(length, symbols, categories):
    task = Memory(length=length, symbols=symbols, categories=categories, samples=400)
    samples = task.samples(np.random.default_rng(1))
    steps = symbols + length + 1
    assert task.spec.input_shape == (steps, 1) and task.spec.output_size == categories
    assert samples.inputs.shape == (400, steps, 1) and samples.inputs.dtype == np.float32
    assert samples.targets.shape == (400,) and samples.targets.dtype == np.int64
    asked = set()
    for sequence, target in zip(samples.inputs[..., 0].tolist(), samples.targets.tolist(), strict=True):
        for symbol in sequence[:symbols]:
            assert symbol in range(categories)
        for filler in sequence[symbols : symbols + length]:
            assert filler == categories
        index = int(sequence[-1])
        asked.add(index)
        assert target == sequence[index]
    assert asked == set(range(symbols))
    assert set(samples.targets.tolist()) == set(range(categories))


def test_the_published_size_is_the_default():
    task = Memory()
    assert (task.spec.input_shape, task.spec.output_size, task.spec.target) == ((102, 1), 10, "class")
    assert task.count == 40_000


def test_guessing_gives_chance():
    task = Memory(length=2, samples=20_000)
    samples = task.samples(np.random.default_rng(0))
    score = task.baselines(samples, samples)["majority class"]
    assert score["accuracy"] == pytest.approx(0.1, abs=0.01)
    assert score["cross_entropy"] == pytest.approx(math.log(10), abs=0.001)


@pytest.mark.parametrize(
    "options", [{"length": -1}, {"symbols": 0}, {"categories": 1}, {"samples": 0}, {"samples": -5}]
)
def test_wrong_options_are_named(options):
    with pytest.raises(BadOption, match=f"memory: .*{next(iter(options))}"):
        Memory(**options)
