"""How long the gradient of every weight was in the first epoch, from the input to the output: does it vanish?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from nnarena.report.board import COLORS, paragraph
from nnarena.report.diagnosis_figures import Curve, curves
from nnarena.results.folder import CURVE
from nnarena.stats.intervals import mean

Lengths = list[float]
ABOUT = (
    "‖∂L/∂W‖ of every weight as a mean over the steps of the first epoch and over seeds, on a logarithmic axis. What "
    "falls towards the input vanished on the way back; what is low everywhere lost its signal on the way there."
)


def read_gradients(folder: Path) -> Lengths | None:
    """Of a trial whose gradients were watched, in the order of its weights; None of any other."""
    try:
        with (folder / CURVE).open() as file:
            first = json.loads(file.readline())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    lengths = list(first.get("gradients", {}).values())
    return lengths if lengths and None not in lengths else None


def gradients_html(task: str, shown: Sequence[tuple[str, int, Sequence[Lengths]]]) -> str:
    """Competitors by name, place among all and the lengths of every seed; nothing where nothing was watched."""
    lines = [
        Curve(name, [mean(list(seeds)) for seeds in zip(*found, strict=True)], place % COLORS, place // COLORS % 2 == 1)
        for name, place, found in shown
        if found
    ]
    if not lines:
        return ""
    drawn = curves(lines, "weight, counted from the input", "length of the gradient")
    title = f"{escape(task)}: the gradient on its way back"
    return f'<section class="gradients"><h2>{title}</h2>{paragraph(ABOUT)}{drawn}</section>'
