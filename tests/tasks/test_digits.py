"""Small digits as a sequence; they ship, so these are the real ones."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.components import find
from nnarena.core.errors import BadOption
from nnarena.tasks.digits import Digits


def test_images_as_sixteen_chunks_of_four():
    from sklearn.datasets import load_digits

    samples = Digits().samples(np.random.default_rng(0))
    theirs = load_digits()
    assert samples.inputs.shape == (1797, 16, 4) and samples.inputs.dtype == np.float32
    np.testing.assert_array_equal(samples.inputs.reshape(-1, 8, 8) * 16, theirs.images)
    np.testing.assert_array_equal(samples.targets, theirs.target)
    assert samples.targets.dtype == np.int64 and samples.inputs.max() == 1


def test_options():
    samples = Digits(samples=10, chunk=1, divide_by=1).samples(np.random.default_rng(0))
    assert samples.inputs.shape == (10, 64, 1) and samples.inputs.max() == 16
    for options in ({"chunk": 3}, {"chunk": 128}, {"samples": -1}, {"divide_by": -1.0}):
        with pytest.raises(BadOption, match="digits: option"):
            Digits(**options)


def test_every_option_is_described():
    assert all(option.doc for option in find("task", "digits").options)
