"""Paths of optimizers on a surface, drawn over its contour lines; and the table of tuned learning rates beside them.

The drawing shows whole paths as it is. `paths.js` lets them walk: a button, and a slider over the steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from nnarena.core.surfaces import SURFACES, Surface
from nnarena.report.contours import contour
from nnarena.report.numbers import NONE, number, with_spread
from nnarena.report.strips import Axis, tick
from nnarena.report.tuned import Tuned, is_tuned
from nnarena.results.folder import EXHIBIT
from nnarena.stats.intervals import mean, sample_std
from nnarena.stats.metrics import better

WIDTH, HEIGHT, LEFT, BELOW = 560, 400, 34, 22  # of the drawing; room for the numbers of its axes
GRID = 120  # squares of the grid that contour lines are found on, each way
LEVELS = (0.05, 0.08, 0.13, 0.22, 0.33, 0.46, 0.6, 0.74, 0.87, 0.96)  # shares of the area that lie below a line
FAR = 4000.0  # pixels beyond which it does not matter where a path is
COLORS = 10  # as many as the style sheet has; beyond it, lines are dashed


def read_path(folder: Path) -> dict[str, Any] | None:
    """The path that a trial shows; None if it shows none, or none that can be read."""
    try:
        content = json.loads((folder / EXHIBIT).read_text(encoding="utf-8"))
        if content["kind"] != "path" or content["surface"] not in SURFACES or not content["places"]:
            return None
        _walk(content, SURFACES[content["surface"]], 0, 0, "")
        return content
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def tuned_html(
    number_: int,
    task: str,
    found: Sequence[Tuned],
    metrics: Sequence[str],
    who: Mapping[tuple[str, str], int],
    paths: Mapping[str, dict[str, Any]],
) -> str:
    """A section: every competitor at its best rate, and on a surface the `paths` that they took, by the trials' ids.

    The board has the number `number_`; `metrics` has the ranking one first, `who` the competitors' numbers on the page.
    Nothing where there is neither a choice of rates nor a path.
    """
    shown = [(one, next((paths[trial["id"]] for trial in one.trials if trial["id"] in paths), None)) for one in found]
    surface = next((path["surface"] for _, path in shown if path), None)
    metrics = [metric for metric in metrics if not (surface and metric == "value")]  # which is f after the last step
    if not (surface or is_tuned(list(found))) or not metrics:
        return ""
    several = len({one.model for one in found}) > 1
    names = [f"{one.model} · {one.optimizer}" if several else one.optimizer for one in found]
    color = {name: place for place, name in enumerate(sorted(names))}
    drawing = ""
    if surface:
        walks = [
            _walk(path, SURFACES[surface], who[one.model, one.label], color[name], name)
            for (one, path), name in zip(shown, names, strict=True)
            if path and path["surface"] == surface
        ]
        steps = max(path["steps"] for _, path in shown if path)
        drawing = _figure(number_, task, SURFACES[surface], "".join(walks), steps)
    rows = "".join(
        _row(one, name, metrics, who[one.model, one.label], color[name], bool(path), bool(surface))
        for (one, path), name in zip(shown, names, strict=True)
    )
    numbers = ["learning rate", *metrics, *(["f now"] if surface else [])]
    head = '<th></th><th scope="col">optimizer</th>'
    head += "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in numbers)
    head += '<th scope="col">tried</th>'
    rates = '<button type="button" class="only" hidden>show only these above</button>' if is_tuned(list(found)) else ""
    return (
        f'<section class="tuned"><h2>{escape(task)}: {"paths, " if surface else ""}each at its best learning rate</h2>'
        f'<p class="meta">{escape(_about(metrics[0], bool(surface)))}</p>'
        f'<div class="beside">{drawing}<div class="scroll">'
        f'<table class="plain rates"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></div>'
        f"{rates}</section>"
    )


def _about(metric: str, surface: bool) -> str:
    low = "lowest" if better(metric) == "lower" else "highest"
    chosen = f"The rate with the {low} {metric}, mean of the seeds, among those at which every trial ended well (not †)"
    if surface:
        return (
            f"{chosen}. A surface has nothing to generalise to: the rate is chosen by the figure that is shown. The "
            "path is that of the first seed, every step of it at the beginning and some of them later. A ring is the "
            "start, a cross a minimum; contour lines enclose fixed shares of the picture."
        )
    return f"{chosen}, on the validation data; they order the rows too. The figures are those of the test at this rate."


def _row(one: Tuned, name: str, metrics: Sequence[str], who: int, color: int, has_path: bool, surface: bool) -> str:
    scores = "".join(_score(one.values(metric), brief=surface) for metric in metrics)
    now = f'<td class="now">{"" if has_path else NONE}</td>' if surface else ""
    tried = ", ".join(f"{_rate(rate)}{' †' if rate in one.failed else ''}" for rate in one.rates)
    return (
        f'<tr data-who="{who}" data-color="{color}" class="{_look(color)}"><td><span class="swatch"></span></td>'
        f'<th scope="row">{escape(name)}</th><td>{_rate(one.lr)}</td>{scores}{now}'
        f'<td class="tried">{tried}</td></tr>'
    )


def _score(values: list[float], brief: bool) -> str:
    """Mean and spread; beside a drawing the mean alone, and the rest where a hand points."""
    if not values:
        return f"<td>{NONE}</td>"
    text = with_spread(mean(values), sample_std(values))
    return f'<td title="{text}">{number(mean(values))}</td>' if brief else f"<td>{text}</td>"


def _rate(rate: float | None) -> str:
    return NONE if rate is None else f"{rate:g}"


def _look(color: int) -> str:
    return f"c{color % COLORS} dash{color // COLORS % 3}"


def _figure(number_: int, task: str, surface: Surface, walks: str, steps: int) -> str:
    marks = "".join(
        f'<path class="minimum" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"/>'
        for x, y in (_pixels(surface, *minimum) for minimum in surface.minima)
    )
    x, y = _pixels(surface, *surface.start)
    clip = f"clip-{number_}"
    return (
        f'<figure><svg viewBox="{-LEFT} -6 {WIDTH + LEFT + 6} {HEIGHT + BELOW + 6}" role="img" '
        f'aria-label="Contour lines and paths on {escape(task)}">'
        f'<defs><clipPath id="{clip}"><rect width="{WIDTH}" height="{HEIGHT}"/></clipPath></defs>'
        f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>{_axes(surface)}'
        f'<g clip-path="url(#{clip})"><g class="contours">{_contours(surface)}</g>{marks}'
        f'<circle class="start" cx="{x:.1f}" cy="{y:.1f}" r="6"/>{walks}</g></svg>'
        f'<figcaption class="controls" hidden><button type="button" class="play">play</button>'
        f'<input type="range" min="0" max="{steps}" value="{steps}" aria-label="Step">'
        f"<output>step {steps} of {steps}</output></figcaption></figure>"
    )


def _walk(path: Mapping[str, Any], surface: Surface, who: int, color: int, name: str) -> str:
    places = [(int(step), *_pixels(surface, float(x), float(y)), float(value)) for step, x, y, value in path["places"]]
    points = " ".join(f"{x:.1f},{y:.1f}" for _, x, y, _ in places)
    steps = ",".join(str(step) for step, *_ in places)
    values = ",".join(f"{value:.4g}" for *_, value in places)
    _, x, y, _ = places[-1]
    return (
        f'<g class="walk {_look(color)}" data-who="{who}" data-steps="{steps}" data-values="{values}">'
        f'<title>{escape(name)}</title><polyline points="{points}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/></g>'
    )


def _pixels(surface: Surface, x: float, y: float) -> tuple[float, float]:
    """Where a place is in the drawing, up being up; what is far away is a little nearer."""
    (x0, y0), (x1, y1) = surface.low, surface.high
    across, up = (x - x0) / (x1 - x0) * WIDTH, (y1 - y) / (y1 - y0) * HEIGHT
    return min(max(across, -FAR), FAR), min(max(up, -FAR), FAR)


def _contours(surface: Surface) -> str:
    """A path for every level; lower ones are drawn more clearly."""
    x, y = (np.linspace(low, high, GRID + 1) for low, high in zip(surface.low, surface.high, strict=True))
    values = np.log(surface.formula(*np.meshgrid(x, y)) - surface.least + 1e-9)
    lines = []
    for place, level in enumerate(np.quantile(values, LEVELS)):
        segments = contour(values, float(level)) / GRID * (WIDTH, HEIGHT)
        text = "".join(f"M{a:.1f} {HEIGHT - b:.1f}L{c:.1f} {HEIGHT - d:.1f}" for (a, b), (c, d) in segments)
        lines.append(f'<path style="opacity:{0.95 - 0.65 * place / (len(LEVELS) - 1):.2f}" d="{text}"/>')
    return "".join(lines)


def _axes(surface: Surface) -> str:
    (x0, y0), (x1, y1) = surface.low, surface.high
    texts = [
        f'<text x="{_pixels(surface, value, y0)[0]:.1f}" y="{HEIGHT + 15}" text-anchor="middle">{tick(value)}</text>'
        for value in Axis(x0, x1, False).ticks()
    ]
    texts += [
        f'<text x="-6" y="{_pixels(surface, x0, value)[1] + 4:.1f}" text-anchor="end">{tick(value)}</text>'
        for value in Axis(y0, y1, False).ticks()
    ]
    return "".join(texts)
