"""Numbers as people read them: as many digits as they are worth, and a spread that is never rounded away."""

from __future__ import annotations

import math

NONE = "–"


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant ones: 0.935, 4.28, 0.00120, 1234, 1.20e-5."""
    if value is None or value != value:
        return NONE
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = _magnitude(value, digits)
    if -4 <= size < 6:
        return f"{value:.{max(0, digits - 1 - size)}f}"
    return _exponent(f"{value:.{digits - 1}e}")


def whole(value: float | None) -> str:
    """A count: 20,241."""
    return NONE if value is None else f"{round(value):,}"


def with_spread(mean: float | None, std: float | None) -> str:
    """`mean ± std`: two significant digits of the spread, and the mean to the same place."""
    if mean is None:
        return NONE
    if std is None:
        return number(mean)
    if std == 0:
        return f"{number(mean)} ± 0"
    size = max(abs(mean), std)
    if size < 1e-3 or size >= 1e6:
        power = math.floor(math.log10(size))
        scale = 10.0**power
        if scale == 0 or not math.isfinite(std / scale):  # beyond what can be scaled
            return f"{number(mean)} ± {number(std, 2)}"
        return f"({with_spread(mean / scale, std / scale)})e{power}"
    places = 1 - _magnitude(std, 2)
    if places > 7:  # a spread in the eighth place is told apart, not as digits of the mean
        return f"{number(mean, 6)} ± {_exponent(f'{std:.1e}')}"
    return f"{mean:z.{max(0, places)}f} ± {std:.{max(0, places)}f}"


def interval(low: float | None, high: float | None) -> str:
    """`[low, high]`, to the place where the two differ by about a hundred units."""
    if low is None or high is None:
        return NONE
    width, size = high - low, max(abs(low), abs(high))
    if width <= 0 or size >= 1e6 or size < 1e-3:
        return f"[{number(low)}, {number(high)}]"
    places = min(max(0, 1 - _magnitude(width, 2)), 9)
    return f"[{low:z.{places}f}, {high:z.{places}f}]"


def _magnitude(value: float, digits: int) -> int:
    """The decimal exponent of `value` after rounding to `digits` significant ones: 0 for 9.99, 1 for 9.999."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def _exponent(text: str) -> str:
    """`1.2e-05` as `1.2e-5`."""
    digits, _, power = text.partition("e")
    return f"{digits}e{int(power)}"
