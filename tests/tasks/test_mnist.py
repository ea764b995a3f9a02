"""MNIST as a sequence."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.components import find
from nnarena.core.errors import BadOption, DataError
from nnarena.data.folder import store
from nnarena.tasks.mnist import MNIST


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        "y_train": np.array([5, 0, 4, 1, 9, 2], np.uint8),
        "x_test": rng.integers(0, 256, (3, 28, 28), dtype=np.uint8),
        "y_test": np.array([7, 2, 1], np.uint8),
    }
    store("mnist", arrays, {})
    return arrays


def test_train_and_test_joined_in_chunks_of_eight(arrays):
    samples = MNIST().samples(np.random.default_rng(0))
    assert samples.inputs.shape == (9, 98, 8) and samples.inputs.dtype == np.float32
    np.testing.assert_array_equal(samples.inputs[7].ravel(), arrays["x_test"][1].ravel())
    np.testing.assert_array_equal(samples.inputs[0, 4], arrays["x_train"][0].ravel()[32:40])
    assert samples.targets.tolist() == [5, 0, 4, 1, 9, 2, 7, 2, 1] and samples.targets.dtype == np.int64
    assert samples.series is None and samples.timespans is None


@pytest.mark.parametrize("most", [1, 4, 6, 7, 9, 100])
def test_the_first_samples(arrays, most):
    few, all_ = (MNIST(samples=count).samples(np.random.default_rng(0)) for count in (most, 100))
    np.testing.assert_array_equal(few.inputs, all_.inputs[:most])
    np.testing.assert_array_equal(few.targets, all_.targets[:most])


def test_options(arrays):
    task = MNIST(chunk=28, divide_by=255)
    assert task.spec.input_shape == (28, 28)
    samples = task.samples(np.random.default_rng(0))
    assert samples.inputs.min() >= 0 and 0.9 < samples.inputs.max() <= 1
    np.testing.assert_array_equal(samples.inputs[0], arrays["x_train"][0].astype(np.float32) / 255)


@pytest.mark.parametrize(
    "options", [{"chunk": 9}, {"chunk": 0}, {"samples": 0}, {"divide_by": 0.0}, {"divide_by": float("nan")}]
)
def test_wrong_options(options):
    with pytest.raises(BadOption, match=f"mnist: option '{next(iter(options))}'"):
        MNIST(**options)


def test_the_specification_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "empty"))
    task = MNIST()
    assert (task.spec.input_shape, task.spec.output_size, task.spec.target) == ((98, 8), 10, "class")
    with pytest.raises(DataError, match="`nnarena data get mnist`"):
        task.samples(np.random.default_rng(0))


def test_every_option_is_described():
    assert all(option.doc for option in find("task", "mnist").options)


@pytest.mark.data
def test_the_real_images():
    samples = MNIST().samples(np.random.default_rng(0))
    assert samples.inputs.shape == (40_000, 98, 8)
    assert samples.inputs.min() == 0 and samples.inputs.max() == 255
    assert samples.targets[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert np.bincount(samples.targets).min() > 3_500
