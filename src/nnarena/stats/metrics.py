"""Which way a metric improves.

The base class of tasks says the same (`core.task`), but it needs torch, which reports must not wait for; a test
holds the two together.
"""

from __future__ import annotations

from typing import Literal

Better = Literal["higher", "lower"]

HIGHER_IS_BETTER = frozenset({"accuracy"})


def better(metric: str) -> Better:
    """Accuracy is better when higher; losses and errors are better when lower."""
    return "higher" if metric in HIGHER_IS_BETTER else "lower"


def rank_key(metric: str, value: float | None) -> tuple[bool, float]:
    """Sorts the best value first and a missing one last."""
    if value is None or value != value:
        return True, 0.0
    return False, -value if better(metric) == "higher" else value
