"""The cell problem against a loop."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.errors import BadOption
from nnarena.tasks.cell import Cell


@pytest.mark.parametrize(("length", "phases"), [(128, 3), (1, 1), (4, 5), (3, 2)])
def test_every_sample_is_what_the_docstring_says(length, phases):
    task = Cell(length=length, phases=phases, samples=6)
    samples = task.samples(np.random.default_rng(0))
    assert samples.inputs.shape == samples.targets.shape == (6, length * phases, 2)
    assert samples.inputs.dtype == samples.targets.dtype == np.float32
    for number, (sequence, targets) in enumerate(zip(samples.inputs, samples.targets, strict=True)):
        line = number % 2
        for step in range(length * phases):
            begins = step % length == 0
            if begins and step > 0:
                line = 1 - line
            assert sequence[step].tolist() == [float(begins and line == 0), float(begins and line == 1)]
            assert targets[step].tolist() == [float(line == 0), float(line == 1)]


def test_only_two_sequences_exist():
    samples = Cell(length=4, samples=50).samples(np.random.default_rng(0))
    assert len(np.unique(samples.inputs, axis=0)) == len(np.unique(samples.targets, axis=0)) == 2


def test_the_published_size_is_the_default():
    task = Cell()
    assert (task.spec.input_shape, task.spec.output_size, task.spec.per_step) == ((384, 2), 2, True)
    assert task.spec.output_shape == (384, 2) and task.count == 40_000


def test_answering_a_half_everywhere_gives_a_quarter():
    task = Cell(length=4, samples=50)
    samples = task.samples(np.random.default_rng(0))
    assert task.baselines(samples, samples) == {"mean": {"mse": pytest.approx(0.25)}}


@pytest.mark.parametrize("options", [{"length": 0}, {"phases": 0}, {"samples": 0}, {"samples": -1}])
def test_wrong_options_are_named(options):
    with pytest.raises(BadOption, match=f"cell: .*{next(iter(options))}"):
        Cell(**options)
