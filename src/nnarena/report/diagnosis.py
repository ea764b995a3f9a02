"""A diagnosis as text: what `nnarena diagnose` prints, from the figures that it measured."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

from nnarena.core.count import counted
from nnarena.report.numbers import NONE, number, whole

Diagnosis = Mapping[str, Any]
VANISHED, EXPLODED = 1e-3, 1e3  # the gradient at the first step, in that of the last
ROWS = 40  # of a table in a terminal
ARROW = " → "
ROUNDING = 1e-6  # of the spread: a mean below is zero


def headline(diagnosis: Diagnosis) -> str:
    return f"{diagnosis['model']} on {diagnosis['task']}"


def circumstances(diagnosis: Diagnosis) -> str:
    """How the figures came about, in one line."""
    count, training = diagnosis["samples"], diagnosis["training"]
    parts = [f"seed {diagnosis['seed']}", counted(count, "training sample")]
    parts.append(diagnosis["before"]["precision"])
    if training is None:
        parts.append("not trained")
    else:
        epochs, ended = training["epochs"], "" if training["status"] == "done" else f", {training['status']}"
        parts.append(f"{diagnosis['optimizer']}, {counted(epochs, 'epoch')}{ended}")
    if training is not None and diagnosis["after"] is None:
        parts.append("no weights were left")
    losses = [f"{number(measured['loss'])} {when}" for when, measured in moments(diagnosis)]
    return " · ".join([*parts, f"loss {', '.join(losses)}"])


def moments(diagnosis: Diagnosis) -> list[tuple[str, Any]]:
    """("before", figures) and, where there is one, ("after", figures)."""
    return [(when, diagnosis[when]) for when in ("before", "after") if diagnosis[when] is not None]


def verdict(ratio: float | None) -> str:
    """What became of a gradient on its way from the last step to the first."""
    if ratio is None or math.isnan(ratio):
        return "no gradient"
    if ratio == 0:
        return "is cut off"
    return "vanishes" if ratio < VANISHED else "explodes" if ratio > EXPLODED else "arrives"


def left_out(diagnosis: Diagnosis) -> str:
    """Which layers have no Jacobian in the tables, and why; nothing if all have one."""
    names = diagnosis["before"]["too_large"]
    return f"The state of {', '.join(names)} is too large for the eigenvalues of its Jacobian." if names else ""


def flow_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """Head first: the gradient at the last step, half way, at the first, and what a step multiplies it by."""
    rows = [["gradient of", "when", "at the last step", "half way", "at the first step", "a step ×", "it"]]
    for before, after in paired(diagnosis, "flow"):
        for when, flow in (("before", before), ("after", after)):
            if flow is not None:
                norms = flow["norms"]
                shown = [number(norms[0]), number(norms[len(norms) // 2]), number(norms[-1])]
                rows.append([flow_name(flow), when, *shown, number(flow["factor"]), verdict(flow["ratio"])])
    return rows


def flow_name(flow: Mapping[str, Any]) -> str:
    return "the input" if flow["name"] == "input" else f"{flow['name']}, {flow['of']}"


def jacobian_rows(diagnosis: Diagnosis) -> list[list[str]]:
    rows = [["step of", "when", "numbers", "spectral radius", "from … to", "norm", "from … to"]]
    for before, after in paired(diagnosis, "jacobian"):
        for when, found in (("before", before), ("after", after)):
            if found is not None:
                spreads = [text for key in ("radius", "norm") for text in _spread(found[key])]
                rows.append([found["name"], when, whole(found["size"]), *spreads])
    return rows


def _spread(values: Mapping[str, float]) -> tuple[str, str]:
    return number(values["mean"], 4), f"{number(values['low'])} … {number(values['high'])}"


def layer_rows(diagnosis: Diagnosis) -> list[list[str]]:
    rows = [["layer", "kind", "mean", "std", "least", "most", "dead", "saturated", "gradient"]]
    for before, after in paired(diagnosis, "layers"):
        figures = [arrow(before, after, key) for key in ("mean", "std", "low", "high")]
        shares = [arrow(before, after, key, share) for key in ("dead", "saturated")]
        kind = (after or before)["kind"]
        rows.append([(after or before)["name"], kind, *figures, *shares, arrow(before, after, "gradient")])
    return rows


def parameter_rows(diagnosis: Diagnosis) -> list[list[str]]:
    rows = [["parameter", "shape", "mean", "std", "least", "most", "gradient", "gradient / weight"]]
    for before, after in paired(diagnosis, "parameters"):
        keys = ("mean", "std", "low", "high", "gradient", "relative")
        shape = "×".join(map(str, before["shape"])) or "1"
        rows.append([before["name"], shape, *(arrow(before, after, key) for key in keys)])
    return rows


def paired(diagnosis: Diagnosis, part: str) -> list[tuple[Any, Any]]:
    """What was found before and after, by name; None where it was found only once."""
    found = [{item["name"]: item for item in measured[part]} for _, measured in moments(diagnosis)]
    first, last = found[0], found[1] if len(found) > 1 else {}
    if part == "flow":  # an input may have the name of a layer
        return [(item, _like(item, diagnosis["after"])) for item in diagnosis["before"]["flow"]]
    return [(first.get(name), last.get(name)) for name in {**first, **last}]


def _like(flow: Mapping[str, Any], measured: Mapping[str, Any] | None) -> Any:
    others = measured["flow"] if measured is not None else []
    return next((other for other in others if (other["name"], other["of"]) == (flow["name"], flow["of"])), None)


def arrow(before: Any, after: Any, key: str, text: Callable[[float | None], str] = number) -> str:
    """`0.12 → 0.35`; one of them where they read the same, or where there is only one."""
    shown = dict.fromkeys(text(_seen(item, key)) for item in (before, after) if item is not None)
    return ARROW.join(shown)


def _seen(item: Mapping[str, Any], key: str) -> float | None:
    """A figure as it is worth being read: what is left of a mean by rounding is zero."""
    value = item[key]
    if key == "mean" and None not in (value, item["std"]) and abs(value) < ROUNDING * item["std"]:
        return 0.0
    return value


def share(value: float | None) -> str:
    if value is None:
        return NONE
    return "0" if value == 0 else f"{value:.0%}" if value >= 0.01 else "<1%"


TABLES: tuple[tuple[str, Callable[[Diagnosis], list[list[str]]]], ...] = (
    ("Gradient through time: the norm of ∂L/∂ what each step hands on", flow_rows),
    ("Jacobian of a step, ∂s_{t+1}/∂s_t", jacobian_rows),
    ("Activations, and the norm of ∂L/∂ them", layer_rows),
    ("Weights, and the norm of their gradient", parameter_rows),
)


def terminal(diagnosis: Diagnosis, width: int | None = None, color: bool = False) -> str:
    """All tables as a terminal shows them; long ones are cut."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(escape(headline(diagnosis)), style="bold")
    console.print(escape(circumstances(diagnosis)))
    for title, rows_of in TABLES:
        head, *rows = rows_of(diagnosis)
        if not rows:
            continue
        console.print()
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for place, name in enumerate(head):
            left = place == 0 or name in ("when", "kind", "shape", "it")
            table.add_column(escape(name), justify="left" if left else "right", overflow="fold")
        for row in rows[:ROWS]:
            table.add_row(*map(escape, row))
        console.print(table)
        if len(rows) > ROWS:
            console.print(f"and {len(rows) - ROWS} more: --json and --output have all of them.")
    if left_out(diagnosis):
        console.print("\n" + escape(left_out(diagnosis)))
    return file.getvalue()
