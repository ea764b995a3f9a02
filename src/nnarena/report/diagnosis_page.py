"""A diagnosis as one HTML file with pictures that opens anywhere, offline, light or dark."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import Any

from nnarena.core.files import finite, write_text
from nnarena.report.diagnosis import (
    Diagnosis,
    arrow,
    circumstances,
    flow_name,
    flow_rows,
    headline,
    jacobian_rows,
    left_out,
    moments,
    paired,
    share,
)
from nnarena.report.diagnosis_figures import Around, Bars, Curve, around_one, around_one_axis, around_one_scale, curves

HERE = Path(__file__).parent
LOSSES = {
    "last": "the loss is that of the last step",
    "steps": "each step has a loss of its own",
    "tokens": "each token that is written has a loss of its own",
}
INPUT = 9  # the colour of the input's curve; layers take the others in turn


def write_diagnosis(diagnosis: Diagnosis, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    write_text(path, build_diagnosis(diagnosis))


def build_diagnosis(diagnosis: Diagnosis) -> str:
    """The whole file as text."""
    diagnosis = finite(dict(diagnosis))
    names = {
        "title": escape(headline(diagnosis)),
        "circumstances": escape(circumstances(diagnosis)),
        "style": "".join((HERE / f"{name}.css").read_text() for name in ("page", "figure", "diagnosis")),
        "flow": _flow(diagnosis),
        "jacobian": _jacobian(diagnosis),
        "layers": _layers(diagnosis),
        "parameters": _parameters(diagnosis),
    }
    return Template((HERE / "diagnosis.html").read_text()).substitute(names)


def _flow(diagnosis: Diagnosis) -> str:
    found = paired(diagnosis, "flow")
    if not found:
        return _section(
            "Gradient through time", "Nothing here goes from step to step: see the gradient layer by layer below."
        )
    lines, color = [], 0
    for before, after in found:
        mine = INPUT if before["of"] == "input" else color % INPUT
        color += before["of"] != "input"
        for when, flow in (("before", before), ("after", after)):
            if flow is not None:
                dashed = when == "before" and after is not None
                lines.append(Curve(f"{flow_name(flow)}, {when}", flow["norms"], mine, dashed))
    drawn = curves(lines, f"steps back from the last one; {LOSSES[diagnosis['losses']]}", "norm of the gradient")
    return _section(
        "Gradient through time",
        "The norm of ∂L/∂s, where s is what a step hands on to the next: its state, and its output. The mean over the "
        "samples of each one's own norm. A straight line down is a gradient that vanishes by the same factor at every "
        "step; what lies that far back can hardly be learned.",
        drawn + _table(flow_rows(diagnosis)),
    )


def _jacobian(diagnosis: Diagnosis) -> str:
    rows = jacobian_rows(diagnosis)
    if len(rows) < 2:
        return _section("What one step does", left_out(diagnosis)) if left_out(diagnosis) else ""
    drawn: list[Around] = []
    for color, (before, after) in enumerate(paired(diagnosis, "jacobian")):
        for when, item in (("before", before), ("after", after)):
            if item is not None:
                radius = {key: _number(value) for key, value in item["radius"].items()}
                drawn.append(Around(**radius, color=color % INPUT, faint=when == "before" and after is not None))
    axis = around_one_axis(drawn)
    body = [
        [*map(escape, row[:3]), around_one(mark, axis), *map(escape, row[3:])]
        for row, mark in zip(rows[1:], drawn, strict=True)
    ]
    head = [*map(escape, rows[0][:3]), around_one_scale(axis), *map(escape, rows[0][3:])]
    return _section(
        "What one step does",
        "The Jacobian J = ∂s′/∂s of one step, at a few steps of a few samples. Its spectral radius, drawn, is what "
        "many equal steps multiply a gradient by in the long run: below 1 it vanishes, above 1 it explodes. Its norm "
        f"is the most that a single step can do. {left_out(diagnosis)}",
        _html_table(head, body),
    )


def _layers(diagnosis: Diagnosis) -> str:
    has_after = diagnosis["after"] is not None
    found = paired(diagnosis, "layers")
    bars = {
        "gradient": Bars(_values(diagnosis, "layers", "gradient"), log=True),
        "std": Bars(_values(diagnosis, "layers", "std"), log=True),
    }
    head = ["layer", "kind", "", "gradient", "", "std", "mean", "least", "most", "dead", "saturated"]
    body = []
    for before, after in found:
        one = after or before
        row = [escape(one["name"]), escape(one["kind"])]
        for key in ("gradient", "std"):
            row += [bars[key].draw(_get(before, key), _get(after, key), has_after), arrow(before, after, key)]
        row += [arrow(before, after, key) for key in ("mean", "low", "high")]
        row += [arrow(before, after, key, share) for key in ("dead", "saturated")]
        body.append(row)
    return _section(
        "Layer by layer",
        "In the order in which they run. The gradient is the norm of ∂L/∂ the layer's output; std, mean, least and "
        "most are of the output's numbers. Dead units say the same to every sample, as a ReLU does that is never on. "
        "Saturated is the share of all sigmoid and tanh values where the slope is below a twentieth of its largest. "
        f"Bars are logarithmic{', before above after' if has_after else ''}.",
        _html_table(head, body),
    )


def _parameters(diagnosis: Diagnosis) -> str:
    has_after = diagnosis["after"] is not None
    bars = Bars(_values(diagnosis, "parameters", "relative"), log=True)
    head = ["parameter", "shape", "", "gradient / weight", "gradient", "std", "mean", "least", "most"]
    body = []
    for before, after in paired(diagnosis, "parameters"):
        drawn = bars.draw(_get(before, "relative"), _get(after, "relative"), has_after)
        shape = "×".join(map(str, before["shape"])) or "1"
        figures = [arrow(before, after, key) for key in ("relative", "gradient", "std", "mean", "low", "high")]
        body.append([escape(before["name"]), shape, drawn, *figures])
    return _section(
        "Weights",
        "The norm of each parameter's gradient, as an optimizer gets it, and beside the norm of the parameter itself. "
        "Layers that differ by decades learn at different speeds.",
        _html_table(head, body),
    )


def _get(item: Any, key: str) -> float | None:
    return None if item is None else item[key]


def _values(diagnosis: Diagnosis, part: str, key: str) -> list[float | None]:
    return [item[key] for _, measured in moments(diagnosis) for item in measured[part]]


def _number(value: float | None) -> float:
    return float("inf") if value is None else value


def _section(title: str, text: str, content: str = "") -> str:
    return f'<section class="task"><h2>{escape(title)}</h2><p class="meta">{escape(text)}</p>{content}</section>'


def _table(rows: list[list[str]]) -> str:
    head, *body = ([escape(cell) for cell in row] for row in rows)
    return _html_table(head, body)


def _html_table(head: list[str], body: list[list[str]]) -> str:
    """Cells are HTML; the first two are text, drawings have no room around them."""
    rows = "".join(f'<tr class="who">{_cells("td", row)}</tr>' for row in body)
    top = f"<thead><tr>{_cells('th', head)}</tr></thead>"
    return f'<div class="scroll"><table class="figures">{top}<tbody>{rows}</tbody></table></div>'


def _cells(tag: str, cells: list[str]) -> str:
    kinds = ["drawn" if "<svg" in cell else "text" if place < 2 else "" for place, cell in enumerate(cells)]
    return "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))
