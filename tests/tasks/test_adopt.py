"""A person's own task."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.errors import ArenaError
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.tasks.adopt import adopt


def build(target, **options):
    component = adopt(target)
    return component.load()(**component.resolve(options))


def test_a_function_of_whole_numbers_is_a_classification():
    def parity(rng, bits: int = 4):
        """Odd or even?"""
        x = rng.integers(0, 2, (200, bits, 1))
        return x, x.sum((1, 2)) % 2

    task = build(parity, bits=6)
    assert task.spec == TaskSpec(input_shape=(6, 1), output_size=2, target="class")
    samples = task.samples(np.random.default_rng(0))
    assert (samples.inputs.dtype, samples.targets.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(samples.targets, samples.inputs.sum((1, 2)) % 2)
    assert adopt(parity).summary == "Odd or even?"


@pytest.mark.parametrize(
    ("shape", "output_size", "per_step"), [((50,), 1, False), ((50, 3), 3, False), ((50, 7, 2), 2, True)]
)
def test_a_function_of_real_numbers_is_a_regression(shape, output_size, per_step):
    def values(rng):
        return rng.random((50, 7, 4)), rng.random(shape)

    task = build(values)
    assert task.spec == TaskSpec(input_shape=(7, 4), output_size=output_size, target="values", per_step=per_step)
    samples = task.samples(np.random.default_rng(0))
    assert samples.targets.shape == (50, *task.spec.output_shape) and samples.targets.dtype == np.float32


def test_the_generator_given_is_the_one_used():
    def noise(rng):
        return rng.random((5, 2, 1)), rng.random(5)

    one, same, other = (build(noise).samples(np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.inputs, same.inputs)
    assert not np.array_equal(one.inputs, other.inputs)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (3, "must return two arrays"),
        ((1, 2, 3), "must return two arrays"),
        ((np.zeros((4, 3)), np.zeros(4)), r"not \(4, 3\) and \(4,\)"),
        ((np.zeros((4, 3, 1)), np.zeros(5)), r"not \(4, 3, 1\) and \(5,\)"),
    ],
)
def test_wrong_arrays_are_a_sentence_with_their_shapes(made, sentence):
    def wrong(rng):
        return made

    with pytest.raises(ArenaError, match=f"The task wrong must return .*{sentence}|{sentence}"):
        build(wrong)


def test_a_subclass_of_task_is_taken_as_it_is():
    class Mine(Task):
        """Mine."""

        def __init__(self, *, steps: int = 3) -> None:
            self.spec = TaskSpec(input_shape=(steps, 1), output_size=1, target="values")

        def samples(self, rng):
            return Samples(np.zeros((2, self.spec.length, 1), np.float32), np.zeros((2, 1), np.float32))

    assert isinstance(build(Mine, steps=5), Mine)
    assert build(Mine, steps=5).samples(np.random.default_rng(0)).inputs.shape == (2, 5, 1)


def test_what_is_no_task_is_a_sentence():
    class Wrong:
        pass

    with pytest.raises(ArenaError, match=r"Wrong cannot be a task: a class must be a subclass of nnarena\.Task"):
        adopt(Wrong)
    with pytest.raises(ArenaError, match="its first argument must be rng"):
        adopt(lambda x: x)
