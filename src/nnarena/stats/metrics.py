"""Which way a metric improves, and between what it lies."""

from __future__ import annotations

import math
from typing import Literal

Better = Literal["higher", "lower"]

HIGHER_IS_BETTER = frozenset(
    {"accuracy", "token_accuracy", "exact_match", "return", "spearman", "training.reward_per_step"}
)
SHARES = dict.fromkeys(("accuracy", "token_accuracy", "exact_match"), (0.0, 1.0))
RANGES = SHARES | {"spearman": (-1.0, 1.0), "mse": (0.0, math.inf), "cross_entropy": (0.0, math.inf)}


def better(metric: str) -> Better:
    """Accuracies, rank correlation, return and reward are better when higher; losses, costs and errors when lower."""
    return "higher" if metric in HIGHER_IS_BETTER else "lower"


def bounds(metric: str) -> tuple[float, float]:
    """The least and the most that a metric can be."""
    return RANGES.get(metric, (-math.inf, math.inf))


def rank_key(metric: str, value: float | None) -> tuple[bool, float]:
    """Sorts the best value first and a missing one last."""
    if value is None or value != value:
        return True, 0.0
    return False, -value if better(metric) == "higher" else value
