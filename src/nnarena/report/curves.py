"""Learning curves for the page, thinned so that a store of any size makes a file that a browser can open."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from nnarena.results.folder import CURVE

BUDGET = 200_000


def allowance(epochs: list[int], budget: int = BUDGET) -> int | None:
    """How many points each curve may have so that all together stay within `budget`; None if all fit whole."""
    if sum(epochs) <= budget:
        return None
    # Short curves leave room for longer ones: give every curve the same limit, as high as it can be.
    left, waiting = budget, sorted(epochs)
    for place, length in enumerate(waiting):
        share = left // (len(waiting) - place)
        if length > share:
            return share
        left -= length
    return None


def read_curve(folder: Path, limit: int | None) -> dict[str, Any] | None:
    """One trial's curve as columns, with at most `limit` epochs of it: first and last, and evenly between.

    `{"epoch": […], "seconds": […], "values": {"loss": […], "validation.mse": […], "lr": […]}}`; None where there is
    none. `seconds` are counted from the beginning of the trial, and so are `steps`, which are there if a model learned
    from what it did.
    """
    try:
        lines = (folder / CURVE).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    lines = [line for line in lines if line.endswith("}\n")]
    places = kept(len(lines), limit)
    epochs = [json.loads(lines[place]) for place in places]
    if not epochs:
        return None
    clock = list(itertools.accumulate(map(_seconds, lines)))
    flat = [_flat(epoch) for epoch in epochs]
    names = dict.fromkeys(name for values in flat for name in values)
    steps = {"steps": [epoch["steps"] for epoch in epochs]} if all("steps" in epoch for epoch in epochs) else {}
    return steps | {
        "epoch": [epoch["epoch"] for epoch in epochs],
        "seconds": [short(clock[place]) for place in places],
        "values": {name: [short(values.get(name)) for values in flat] for name in names},
    }


def kept(count: int, limit: int | None) -> list[int]:
    """Which of `count` epochs to show: all, or `limit` of them with both ends."""
    if limit is None or count <= limit:
        return list(range(count))
    if limit < 2:
        return [count - 1][:limit]
    return sorted({round(place * (count - 1) / (limit - 1)) for place in range(limit)})


def short(value: float | None) -> float | None:
    """Five digits are more than a screen shows."""
    return None if value is None else float(f"{value:.5g}")


def _seconds(line: str) -> float:
    """What one epoch took. Looked up in the text: most lines of a large store are not worth parsing."""
    found = re.search(r'"seconds": ([-+.\deE]+)', line)
    return float(found[1]) if found else 0.0


def _flat(epoch: dict[str, Any]) -> dict[str, float | None]:
    parts = ("validation", "test", "training")
    named = {f"{part}.{name}": value for part in parts for name, value in (epoch.get(part) or {}).items()}
    return {"loss": epoch.get("loss"), **named, "lr": epoch.get("lr")}
