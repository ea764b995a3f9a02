"""Surfaces f(x, y) on which one can watch an optimizer walk.

Each is a formula of plain arithmetic, so that numbers, numpy's arrays and torch's tensors go in alike: the task
descends on it, and the report draws its contour lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nnarena.core.errors import UnknownName

Point = tuple[float, float]


@dataclass(frozen=True)
class Surface:
    """A formula and what is known of it.

    minima      all points where f is least, and `least`, the value there
    start       where a walk begins
    low, high   corners of the part that is drawn; a walk begins in it
    noise       standard deviation of the normal noise on each number of the gradient
    """

    formula: Callable[[Any, Any], Any]
    minima: tuple[Point, ...]
    least: float
    start: Point
    low: Point
    high: Point
    noise: float = 0.0

    def has(self, point: Point) -> bool:
        """Whether a point lies in the part that is drawn."""
        return all(a <= value <= b for a, value, b in zip(self.low, point, self.high, strict=True))


def quartic(x: Any, y: Any) -> Any:
    """x⁴ + 4 x³ + y²: the one variable of the textbook and a plain parabola beside it.

    Its gradient in x is 4 x² (x + 3): the minimum is at x = −3, and x = 0 is flat but no minimum.
    """
    return x**4 + 4 * x**3 + y**2


def rosenbrock(x: Any, y: Any) -> Any:
    """(1 − x)² + 100 (y − x²)²: a curved valley, easy to find and hard to follow (Rosenbrock 1960)."""
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def beale(x: Any, y: Any) -> Any:
    """(1.5 − x + x y)² + (2.25 − x + x y²)² + (2.625 − x + x y³)²: a plain with steep corners (Beale 1958)."""
    return (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2


def saddle(x: Any, y: Any) -> Any:
    """x² − y² + y⁴ / 2: a saddle at the origin, between two minima at y = ±1, so that there is an end to reach."""
    return x**2 - y**2 + y**4 / 2


def ravine(x: Any, y: Any) -> Any:
    """(x + y)² / 20 + 5 (x − y)²: a hundred times as steep across as along, and along no axis."""
    return (x + y) ** 2 / 20 + 5 * (x - y) ** 2


SURFACES = {
    "quartic": Surface(quartic, ((-3.0, 0.0),), -27.0, start=(1.0, 1.5), low=(-4.4, -2.0), high=(1.6, 2.0)),
    "rosenbrock": Surface(rosenbrock, ((1.0, 1.0),), 0.0, start=(-1.2, 1.0), low=(-2.0, -1.0), high=(2.0, 3.0)),
    "beale": Surface(beale, ((3.0, 0.5),), 0.0, start=(1.0, 1.5), low=(-1.0, -2.0), high=(4.5, 2.0)),
    "saddle": Surface(saddle, ((0.0, 1.0), (0.0, -1.0)), -0.5, start=(1.5, 0.0), low=(-2.0, -1.6), high=(2.0, 1.6)),
    "ravine": Surface(ravine, ((0.0, 0.0),), 0.0, start=(-4.0, -2.5), low=(-5.0, -5.0), high=(5.0, 5.0), noise=2.0),
}


def find_surface(name: str) -> Surface:
    if name not in SURFACES:
        raise UnknownName("surface", name, SURFACES)
    return SURFACES[name]
