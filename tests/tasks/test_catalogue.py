"""A sweep over every task: what the specification says is what the samples are, and the seed decides them."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.components import catalogue
from nnarena.core.spec import BEGIN, END, TaskSpec
from nnarena.core.task import Task

TASKS = sorted(catalogue("task"))
# Tasks whose data come from nowhere or with the package, small.
AT_HAND = {
    "add": {"length": 10, "samples": 64},
    "memory": {"length": 5, "symbols": 2, "samples": 64},
    "cell": {"length": 4, "samples": 64},
    "wave": {"length": 8, "samples": 64},
    "digits": {"samples": 64},
    "digits_image": {"samples": 64},
    "copy": {"length": 4, "shortest": 2, "samples": 64},
    "reverse": {"length": 4, "shortest": 2, "samples": 64},
    "sort": {"length": 4, "shortest": 2, "samples": 64},
    "dates": {"samples": 64},
}


def make(name: str, **options) -> Task:
    component = catalogue("task")[name]
    return component.load()(**component.resolve(options))


@pytest.mark.parametrize("name", TASKS)
def test_a_specification_needs_no_data(name, tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "nothing"))
    spec = make(name).spec
    assert isinstance(spec, TaskSpec)
    assert all(size > 0 for size in spec.input_shape) and spec.output_size > 0
    assert spec.target in ("values", "class", "tokens")


@pytest.mark.parametrize("name", AT_HAND)
def test_samples_are_as_the_specification_says(name):
    task = make(name, **AT_HAND[name])
    samples = task.samples(np.random.default_rng(0))
    assert len(samples) == 64
    assert samples.inputs.shape == (64, *task.spec.input_shape)
    kind = np.int64 if task.spec.vocabulary else np.uint8 if name == "digits_image" else np.float32
    assert samples.inputs.dtype == kind
    if task.spec.target == "tokens":
        assert samples.targets.shape == (64, task.spec.target_length) and samples.targets.dtype == np.int64
        assert (samples.inputs.max(), samples.targets.max()) < (task.spec.vocabulary, task.spec.output_size)
        assert ((samples.targets == END).sum(1) == 1).all() and not (samples.targets == BEGIN).any()
    elif task.spec.target == "class":
        assert samples.targets.shape == (64,) and samples.targets.dtype == np.int64
        assert samples.targets.min() >= 0 and samples.targets.max() < task.spec.output_size
    else:
        assert samples.targets.shape == (64, *task.spec.output_shape) and samples.targets.dtype == np.float32
    assert np.isfinite(samples.inputs).all() and np.isfinite(samples.targets).all()


@pytest.mark.parametrize("name", AT_HAND)
def test_the_seed_decides_all_samples(name):
    one, same, other = (make(name, **AT_HAND[name]).samples(np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.inputs, same.inputs)
    np.testing.assert_array_equal(one.targets, same.targets)
    if name not in ("cell", "digits", "digits_image"):
        assert not np.array_equal(one.inputs, other.inputs)


@pytest.mark.parametrize("name", AT_HAND)
def test_trivial_baselines_are_there_and_no_better_than_they_can_be(name):
    task = make(name, **AT_HAND[name])
    samples = task.samples(np.random.default_rng(0))
    baselines = task.baselines(samples, samples)
    assert baselines
    for scores in baselines.values():
        assert all(np.isfinite(value) and value >= 0 for value in scores.values())
        if "accuracy" in scores:
            assert scores["accuracy"] == np.bincount(samples.targets).max() / 64
