"""How wide a competitor may be: the arena's rivals have about 20,000 parameters each."""

from __future__ import annotations

from collections.abc import Callable

from nnarena.core.errors import Unfit

BUDGET = 20_000


def widest(parameters: Callable[[int], int], budget: int = BUDGET) -> int:
    """The largest width, at least 1, with `parameters(width)` within the budget; more width means more of them."""
    width = 1
    while parameters(2 * width) <= budget:
        width *= 2
    step = width
    while step := step // 2:
        if parameters(width + step) <= budget:
            width += step
    return width


def width_or_widest(name: str, given: int | None, parameters: Callable[[int], int]) -> int:
    """The width that was asked for by the option `name`; without one, the widest."""
    if given is None:
        return widest(parameters)
    if given < 1:
        raise Unfit(f"it takes {name} of at least 1, not {given}.")
    return given
