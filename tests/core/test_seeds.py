"""Seeds are the same on every machine and in every year."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnarena.core.seeds import derive


@pytest.mark.parametrize(
    ("axes", "seed"),
    [
        ((), 2858069222894195974),
        (("poster", "add", 0, "data"), 7292359961334544651),
        (("poster", "add", 0, "order", 7), 8435321093105082017),
        (("ß", "add[length=4]", 2), 3227859846495392580),
    ],
)
def test_known_values_never_change(axes, seed):
    assert derive(*axes) == seed


def test_the_definition_by_hand():
    assert derive("a", 1) == int(hashlib.sha256(b'["a",1]').hexdigest()[:16], 16) // 2


axes = st.lists(st.text(max_size=6) | st.integers(0, 9), max_size=4)


@given(axes, axes)
def test_other_axes_give_another_seed(one, other):
    assert (derive(*one) == derive(*other)) == (one == other)
    assert 0 <= derive(*one) < 2**63


def test_a_number_is_not_its_text_and_neighbours_do_not_merge():
    assert len({derive("1"), derive(1), derive("a", "b"), derive("ab"), derive("b", "a"), derive("a,b")}) == 6
