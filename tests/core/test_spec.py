"""Specifications: shapes without torch."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.errors import Unfit
from nnarena.core.spec import Samples, TaskSpec


@pytest.mark.parametrize(
    ("per_step", "target", "shape"), [(False, "values", (3,)), (False, "class", (3,)), (True, "values", (7, 3))]
)
def test_the_output_a_model_must_give(per_step, target, shape):
    spec = TaskSpec(input_shape=(7, 2), output_size=3, target=target, per_step=per_step)
    assert (spec.length, spec.input_size, spec.output_shape) == (7, 2, shape)


def test_who_asks_an_image_for_its_steps_is_unfit():
    with pytest.raises(Unfit, match=r"\(3, 32, 32\)"):
        _ = TaskSpec(input_shape=(3, 32, 32), output_size=10, target="class").length


def test_the_first_samples_are_cut_from_every_part():
    whole = Samples(*(np.arange(5.0) for _ in range(5)))
    few = whole.first(2)
    assert len(few) == 2
    assert all(len(part) == 2 for part in vars(few).values())
    assert len(whole.first(9)) == 5
    assert Samples(np.ones(3), np.ones(3)).first(1).series is None
