"""Every optimizer at the learning rate that suits it best, chosen by validation.

Trials that differ in nothing but the learning rate of their optimizer (and the seed) are one competitor that was tuned.
The rate is the one whose mean over seeds, of the metric that ranks, is best on the validation data; the test figures of
that rate are then shown. A rate at which a trial did not end well comes after all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnarena.core.errors import ArenaError
from nnarena.core.options import Choice, parse_choice
from nnarena.stats.intervals import mean
from nnarena.stats.metrics import rank_key

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Tuned:
    """A competitor on one task: `optimizer` without its rate, the `label` with it, and the trials at the best rate.

    `rates` are all that were tried, `failed` those at which a trial diverged, failed or ran out of time.
    """

    model: str
    optimizer: str
    label: str
    lr: float | None
    rates: tuple[float | None, ...]
    failed: tuple[float | None, ...]
    trials: tuple[Mapping[str, Any], ...]

    def values(self, metric: str, part: str = "test") -> list[float]:
        found = [trial.get(f"{part}.{metric}") for trial in self.trials]
        return [value for value in found if value is not None]


def tuned(table: pl.DataFrame, task: str, metric: str) -> list[Tuned]:
    """The competitors of one task, best first by the metric that chose their rates."""
    found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for trial in table.iter_rows(named=True):
        if trial["task"] == task:
            key = trial["model"], without_rate(trial["optimizer"])
            found.setdefault(key, {}).setdefault(trial["optimizer"], []).append(trial)
    best = [_best(model, optimizer, rates, metric) for (model, optimizer), rates in found.items()]
    return sorted(best, key=lambda one: (*_rank(one.trials, metric), one.model, one.optimizer))


def is_tuned(found: list[Tuned]) -> bool:
    """Whether there was a choice."""
    return any(len(one.rates) > 1 for one in found)


def without_rate(label: str) -> str:
    """`adam[eps=1e-7]` of `adam[lr=0.01,eps=1e-7]`."""
    try:
        choice = parse_choice(label)[0]
    except ArenaError:
        return label
    return Choice(choice.ref, {name: value for name, value in choice.options.items() if name != "lr"}).label


def _best(model: str, optimizer: str, rates: dict[str, list[dict[str, Any]]], metric: str) -> Tuned:
    lr = {label: _rate(trials[0]) for label, trials in rates.items()}
    label = min(rates, key=lambda label: (*_rank(rates[label], metric), lr[label] or 0.0))
    bad = [lr[label] for label, trials in rates.items() if any(trial["status"] != "done" for trial in trials)]
    every, failed = (tuple(sorted(part, key=lambda rate: rate or 0.0)) for part in (lr.values(), bad))
    trials = tuple(sorted(rates[label], key=lambda trial: trial["seed"]))
    return Tuned(model, optimizer, label, lr[label], every, failed, trials)


def _rate(trial: Mapping[str, Any]) -> float | None:
    return json.loads(trial["options"]).get("optimizer", {}).get("lr")


def _rank(trials: Any, metric: str) -> tuple[bool, bool, float]:
    """Sorts rates at which every trial ended well first, and these by validation."""
    values = [trial.get(f"validation.{metric}") for trial in trials]
    known = [value for value in values if value is not None]
    return any(trial["status"] != "done" for trial in trials), *rank_key(metric, mean(known) if known else None)
