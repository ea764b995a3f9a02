"""What a few seeds say about the mean behind them.

With $n$ seeds of mean $m$ and sample standard deviation $s$ the 95 % Student-t interval of the true mean is

    m ± t(0.975, n - 1) · s / √n

and that of the difference of two means whose spreads need not be equal (Welch 1947) is

    (m₁ - m₂) ± t(0.975, ν) · √(v₁ + v₂),   vᵢ = sᵢ² / nᵢ,   ν = (v₁ + v₂)² / (v₁² / (n₁ - 1) + v₂² / (n₂ - 1))

One seed has a value but no interval: nothing is known about its spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """Mean, sample standard deviation and interval of `n` values; None is what they are too few to tell."""

    n: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None

    def within(self, least: float, most: float) -> Estimate:
        """The interval without the part in which the value cannot lie; it covers the truth as often as before."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=min(max(self.low, least), most), high=max(min(self.high, most), least))

    def as_dict(self) -> dict[str, float | None]:
        """As reports write it."""
        return {"mean": self.mean, "std": self.std, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Difference:
    """A difference of two means, its interval and its degrees of freedom (infinite when nothing varies)."""

    mean: float
    low: float
    high: float
    degrees: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean, summed without rounding; equal values give exactly that value."""
    values = list(values)
    if not values:
        raise ValueError("No values have no mean.")
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def sample_std(values: Iterable[float]) -> float | None:
    """√(Σ (x - m)² / (n - 1)); None for fewer than two values."""
    values = list(values)
    if len(values) < 2:
        return None
    center = mean(values)
    # Scaled by the widest deviation, so that neither very small nor very large values are lost in the square.
    scale = max(abs(value - center) for value in values)
    if scale == 0:
        return 0.0
    return scale * math.sqrt(math.fsum(((value - center) / scale) ** 2 for value in values) / (len(values) - 1))


def t_quantile(degrees: float, level: float = LEVEL) -> float:
    """How many standard errors a two-sided interval reaches from its centre."""
    from scipy.special import stdtrit  # scipy.stats has this too and takes seconds to import

    return float(stdtrit(degrees, (1 + level) / 2))


def estimate(values: Iterable[float], level: float = LEVEL) -> Estimate:
    """What `values`, one a seed, say about their mean."""
    values = list(values)
    if not values:
        return Estimate(0, None, None, None, None)
    center, std = mean(values), sample_std(values)
    if std is None:
        return Estimate(1, center, None, None, None)
    half = t_quantile(len(values) - 1, level) * std / math.sqrt(len(values)) if std else 0.0
    return Estimate(len(values), center, std, center - half, center + half)


def welch(
    mean_1: float, std_1: float, n_1: int, mean_2: float, std_2: float, n_2: int, level: float = LEVEL
) -> Difference:
    """The interval of `mean_1 - mean_2`, from summaries. Both sides need at least two values."""
    if min(n_1, n_2) < 2:
        raise ValueError("The interval of a difference needs at least two values on each side.")
    center = mean_1 - mean_2
    scale = max(std_1, std_2)
    if scale == 0:
        return Difference(center, center, center, math.inf)
    v_1, v_2 = (std_1 / scale) ** 2 / n_1, (std_2 / scale) ** 2 / n_2
    degrees = (v_1 + v_2) ** 2 / (v_1**2 / (n_1 - 1) + v_2**2 / (n_2 - 1))
    half = t_quantile(degrees, level) * scale * math.sqrt(v_1 + v_2)
    return Difference(center, center - half, center + half, degrees)
