"""Contour lines of a function on a grid, by marching squares."""

from __future__ import annotations

import numpy as np

# Which sides of a square a line joins, by which of its corners lie above the level: 1 lower left, 2 lower right,
# 4 upper right, 8 upper left. Sides: 0 below, 1 right, 2 above, 3 left. Two lines where opposite corners agree.
JOINS = {
    1: ((3, 0),),
    2: ((0, 1),),
    3: ((3, 1),),
    4: ((1, 2),),
    5: ((3, 2), (0, 1)),
    6: ((0, 2),),
    7: ((3, 2),),
    8: ((2, 3),),
    9: ((2, 0),),
    10: ((3, 0), (1, 2)),
    11: ((2, 1),),
    12: ((1, 3),),
    13: ((1, 0),),
    14: ((0, 3),),
}


def contour(values: np.ndarray, level: float) -> np.ndarray:
    """Where `values` (Y, X) cross a level: segments (N, 2, 2) of two places (x, y) each, in steps of the grid.

    Along a side the crossing is where a straight line between its two corners has the level.
    """
    corners = values[:-1, :-1], values[:-1, 1:], values[1:, 1:], values[1:, :-1]
    kind = sum((corner > level).astype(int) << bit for bit, corner in enumerate(corners))
    a, b, c, d = corners
    y, x = np.mgrid[: a.shape[0], : a.shape[1]].astype(float)
    sides = (
        (x + _share(a, b, level), y),
        (x + 1, y + _share(b, c, level)),
        (x + _share(d, c, level), y + 1),
        (x, y + _share(a, d, level)),
    )
    found = [np.empty((0, 2, 2))]
    for number, joins in JOINS.items():
        here = kind == number
        for one, other in joins:
            ends = [np.stack([part[here] for part in sides[side]], 1) for side in (one, other)]
            found.append(np.stack(ends, 1))
    return np.concatenate(found)


def _share(one: np.ndarray, other: np.ndarray, level: float) -> np.ndarray:
    """Which part of the way from one corner to the other the level is at; anything where it is not between them."""
    way = other - one
    return np.clip((level - one) / np.where(way == 0, 1, way), 0, 1)
