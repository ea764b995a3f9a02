"""Contour lines lie where the function has the level."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.report.contours import JOINS, contour


@pytest.mark.parametrize("level", [0.33, 1.03, 2.21])
def test_the_lines_of_a_cone_are_circles_and_closed(level):
    size = 60
    y, x = np.mgrid[-3 : 3 : (size + 1) * 1j, -3 : 3 : (size + 1) * 1j]
    segments = contour(np.hypot(x, y), level) / size * 6 - 3
    radii = np.hypot(segments[..., 0], segments[..., 1])
    np.testing.assert_allclose(radii, level, atol=0.02)
    lengths = np.linalg.norm(segments[:, 0] - segments[:, 1], axis=1)
    assert lengths.sum() == pytest.approx(2 * np.pi * level, rel=0.01)
    ends, counts = np.unique(segments.reshape(-1, 2).round(9), axis=0, return_counts=True)
    assert (counts == 2).all() and len(ends) == len(segments)  # every end is shared by two


def test_a_plane_has_a_straight_line_and_a_level_outside_none():
    values = np.add.outer(np.arange(4.0), np.zeros(5))
    segments = contour(values, 1.25)
    assert len(segments) == 4 and np.allclose(segments[..., 1], 1.25)
    assert contour(values, 9).shape == (0, 2, 2) and contour(np.ones((3, 3)), 1.0).shape == (0, 2, 2)


def test_every_kind_of_square_is_joined_at_sides_that_cross():
    corners = {0: (0, 1), 1: (1, 2), 2: (3, 2), 3: (0, 3)}  # of a side
    assert JOINS.keys() == set(range(1, 15))
    for kind, joins in JOINS.items():
        above = [bool(kind >> corner & 1) for corner in range(4)]
        crossed = sorted(side for side, (one, other) in corners.items() if above[one] != above[other])
        assert sorted(side for join in joins for side in join) == crossed
