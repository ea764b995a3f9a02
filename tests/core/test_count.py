"""Numbers of things."""

from __future__ import annotations

from nnarena.core.count import counted


def test_one_is_singular_and_all_else_is_not():
    assert [counted(count, "trial") for count in (0, 1, 2, 1797)] == ["0 trials", "1 trial", "2 trials", "1,797 trials"]
