"""Does our figure agree with a published one?

The rule, in plain words. Take the 95 % Welch interval of *ours minus published*.

1. Widen it on both sides by half a unit of the last printed digit, for the published mean was rounded. If it then
   lies wholly on one side of zero, the figure is **not reproduced**, and it says whether ours is better or worse.
2. Otherwise nothing speaks against agreement. That alone is no reproduction: an interval wide enough contains zero
   whatever the truth is. So the (unwidened) interval must also reach no further from its centre than a margin,

       max( min(3 · published std, half of |published mean|), a tenth of |published mean|, the rounding )

   that is: within the spread that the publication itself shows, unless that is so large that the publication says
   little, and never asked to be finer than ten per cent or than the printed digits. If it is that narrow, the figure
   is **reproduced**, and if not, it is **undecided**.
3. Fewer than two values of ours, or a published figure without a standard deviation of at least two runs, leave it
   **undecided**.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nnarena.stats.intervals import estimate, welch
from nnarena.stats.metrics import Better

REPRODUCED, UNDECIDED = "reproduced", "undecided"
RULE = (
    "A published figure is reproduced when the 95 % Welch interval of ours minus published, widened by the rounding "
    "of the printed figure, contains zero and is no wider to either side than three published standard deviations "
    "(at most half of the published mean), ten per cent of the published mean, or the rounding, whichever is largest. "
    "An interval that contains zero but is wider decides nothing. An interval that does not contain zero says: not "
    "reproduced."
)


@dataclass(frozen=True)
class Verdict:
    """The verdict and its evidence: the interval of ours minus published (not widened), and what was asked of it."""

    text: str
    why: str
    low: float | None = None
    high: float | None = None
    margin: float | None = None


def resolution(printed: str) -> float:
    """Half a unit of the last printed digit: `0.935` was rounded by at most 0.0005.

    >>> resolution("0.935")
    0.0005
    """
    digits, _, exponent = printed.strip().lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return float(f"5e{int(exponent or 0) - decimals - 1}")


def margin(mean: float, std: float, rounding: float) -> float:
    """How far the interval of a difference may reach and still count as evidence of agreement."""
    return max(min(3 * std, abs(mean) / 2), abs(mean) / 10, rounding)


def reproduced(
    mean: float,
    std: float | None,
    runs: int | None,
    ours: Sequence[float],
    rounding: float = 0.0,
    direction: Better | Literal["neither"] = "lower",
) -> Verdict:
    """The verdict on a published `mean` ± `std` of `runs` runs, given `ours`, one value a seed.

    `rounding` is half a unit of the last printed digit (see `resolution`). `direction` says which way is better;
    with "neither" a figure that is not reproduced is called higher or lower.
    """
    if len(ours) < 2:
        return Verdict(UNDECIDED, "fewer than two values of ours tell no spread")
    if std is None or runs is None or runs < 2:
        return Verdict(UNDECIDED, "the published figure tells no spread")
    our = estimate(ours)
    assert our.mean is not None and our.std is not None
    difference = welch(our.mean, our.std, our.n, mean, std, runs)
    limit = margin(mean, std, rounding)
    evidence = {"low": difference.low, "high": difference.high, "margin": limit}
    # A hair of tolerance, so that a difference of exactly the rounding is not decided by the last bit of a float.
    reach = rounding + 1e-12 * max(abs(mean), abs(our.mean))
    if difference.low - reach > 0 or difference.high + reach < 0:
        word = "higher" if difference.mean > 0 else "lower"
        if direction != "neither":
            word = "better" if word == direction else "worse"
        return Verdict(f"not reproduced: {word}", "the interval of the difference does not contain zero", **evidence)
    if difference.half_width > limit:
        return Verdict(UNDECIDED, "the interval of the difference is too wide to tell", **evidence)
    return Verdict(REPRODUCED, "the interval of the difference is narrow and contains zero", **evidence)
