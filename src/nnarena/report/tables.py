"""A summary as text: Markdown, CSV, JSON, LaTeX, and the leaderboard in a terminal.

    render(summarise(store), "md")

CSV and JSON hold every number in full; the others are for reading.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from nnarena.core.errors import ArenaError, suggestion
from nnarena.core.files import finite
from nnarena.report.numbers import NONE, number, whole
from nnarena.report.ranking import (
    Board,
    Line,
    beside_text,
    boards,
    notes,
    published_figure,
    score_texts,
    trial_remarks,
    verdict_sentence,
)

Summary = Mapping[str, Any]
FORMATS = ("md", "csv", "json", "latex", "terminal")
BASELINE = "baseline"
NESTED = (
    "task",
    "test",
    "best_on_test",
    "training",
    "beside",
    "published",
    "command",
)  # of a row: what is not one number


def render(summary: Summary, format: str) -> str:
    """The summary in one of `FORMATS`."""
    writers: dict[str, Callable[[Summary], str]] = {
        "md": markdown,
        "csv": comma_separated,
        "json": as_json,
        "latex": latex,
        "terminal": terminal,
    }
    if format not in writers:
        raise ArenaError(f"There is no report format {format!r}{suggestion(format, [*writers, 'html'])}")
    return writers[format](summary)


def as_json(summary: Summary) -> str:
    return json.dumps(finite(summary), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def comma_separated(summary: Summary) -> str:
    """One line a competitor or baseline, with every number in full."""
    lines = [
        {"task": board.task, "kind": BASELINE if line.is_baseline else "competitor"} | _flat(line)
        for board in boards(summary)
        for line in board.lines
    ]
    first = ["task", "kind", "rank", "model", "optimizer", "trials", "failed"]
    columns = list(dict.fromkeys([*first, *(name for line in lines for name in line)]))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _flat(line: Line) -> dict[str, Any]:
    plain = {key: value for key, value in line.row.items() if key not in NESTED}
    flat = {"rank": line.rank, "model": line.name} | plain
    for metric, score in line.test.items():
        flat |= {f"test.{metric}.{what}": value for what, value in score.items()}
    for part in ("best_on_test", "training", "beside"):
        for metric, score in line.row.get(part, {}).items():
            flat |= {f"{part}.{metric}.{what}": value for what, value in score.items()}
    for metric, figure in line.row.get("published", {}).items():
        flat |= {f"published.{metric}.{what}": figure[what] for what in ("mean", "std", "verdict")}
    return flat | ({"command": line.row["command"]} if line.row else {})


def columns(board: Board) -> list[str]:
    """The headings of a leaderboard as text."""
    ranking, others = board.metrics[:1], board.metrics[1:]
    return [
        "#",
        "model",
        *(["optimizer"] if len(board.optimizers) > 1 else []),
        *(text for metric in ranking for text in (metric, "95 % interval")),
        *(["published", "verdict"] if ranking and board.has_published else []),
        *others,
        *board.beside,
        "parameters",
        "epochs",
        "s/epoch",
        "trials",
    ]


def cells(board: Board, line: Line, exclusive: bool) -> list[str]:
    """A row of a leaderboard as text, under the headings of `columns`."""
    row = line.row
    found = ["" if line.rank is None else str(line.rank), f"({BASELINE}) {line.name}" if not row else line.name]
    if len(board.optimizers) > 1:
        found.append(row.get("optimizer", ""))
    for place, metric in enumerate(board.metrics):
        mean, spread = score_texts(line, metric)
        found += [mean, spread if row else ""] if place == 0 else [mean]
        if place == 0 and board.has_published:
            figure = row.get("published", {}).get(metric)
            found += [published_figure(metric, figure), figure["verdict"]] if figure else ["", ""]
    found += [beside_text(line, name) for name in board.beside]
    if not row:
        return [*found, "", "", "", ""]
    seconds = number(row["seconds_per_epoch"])
    return [
        *found,
        whole(row["parameters"]),
        number(row["epochs"]),
        seconds if exclusive or seconds == NONE else f"~{seconds}",
        trials_text(row),
    ]


def trials_text(row: Mapping[str, Any]) -> str:
    """`3`, `3 (1 failed)`, `3 (2 of 3 collapsed)`."""
    return f"{row['trials']} ({'; '.join(remarks)})" if (remarks := trial_remarks(row)) else str(row["trials"])


def sentences(board: Board) -> list[str]:
    """What is to be said of the published figures of a task, ranking metric first."""
    found = []
    for line in board.lines:
        figures = line.row.get("published", {})
        order = [metric for metric in board.metrics if metric in figures]
        order += [metric for metric in figures if metric not in board.metrics]
        several = len(board.optimizers) > 1
        name = f"{line.name} with {line.row['optimizer']}" if figures and several else line.name
        found += [f"{name}, {metric}: {verdict_sentence(metric, line.row)}" for metric in order]
    return found


def verdict_notes(board: Board) -> list[str]:
    """Why the verdicts of a leaderboard are not *reproduced*, each reason once; and sizes that differ."""
    found: dict[str, None] = {}
    for line in board.lines:
        figures = line.row.get("published", {})
        ranking = figures.get(board.metrics[0]) if board.metrics else None
        if ranking and ranking["verdict"] in ("undecided", "not comparable") and ranking.get("why"):
            found[f"{ranking['verdict']}: {ranking['why']}"] = None
        if figures.get("parameters", {}).get("verdict") == "differs":
            found[f"{line.name}, parameters: {verdict_sentence('parameters', line.row)}"] = None
    return list(found)


def failure_sentences(summary: Summary) -> list[str]:
    return [f"{item['path']} {item['status']}: {_one_line(item['reason'])}" for item in summary["failures"]]


def markdown(summary: Summary) -> str:
    parts = [f"# {_md(summary['title'] or summary['study'])}"]
    for board in boards(summary):
        parts.append(f"## {_md(board.task)}")
        rows = [cells(board, line, summary["exclusive_timing"]) for line in board.lines]
        names = columns(board)
        right = ["---" if name in ("model", "optimizer") else "---:" for name in names]
        table = [names, right, *rows]
        lines = [[_md(cell) for cell in row] if place != 1 else row for place, row in enumerate(table)]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in lines))
        if board.has_published:
            parts.append("\n".join(f"- {_md(text)}" for text in sentences(board)))
    if summary["failures"]:
        parts += ["## Failures", "\n".join(f"- {_md(text)}" for text in failure_sentences(summary))]
    parts += [_md(note) for note in notes(summary)]
    return "\n\n".join(parts) + "\n"


def _md(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", _one_line(text))


def latex(summary: Summary) -> str:
    """One `table` a task, for `\\usepackage{booktabs}`."""
    parts = ["% \\usepackage{booktabs}"]
    parts += [_latex_table(board, summary) for board in boards(summary)]
    parts += [f"% {_one_line(note)}" for note in notes(summary)]
    return "\n\n".join(parts) + "\n"


def _latex_table(board: Board, summary: Summary) -> str:
    names = columns(board)
    published = bool(board.metrics) and any(board.metrics[0] in line.row.get("published", {}) for line in board.lines)
    layout = "".join("l" if name in ("model", "optimizer") else "r" for name in names) + ("l" if published else "")
    caption = f"{summary['title'] or summary['study']}: {board.task}"
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(caption)}}}",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        " & ".join(map(_tex, names + (["published"] if published else []))) + r" \\",
        r"\midrule",
    ]
    for line in board.lines:
        row = [_tex(cell) for cell in cells(board, line, summary["exclusive_timing"])]
        if published:
            figure = line.row.get("published", {}).get(board.metrics[0])
            row.append(_tex(verdict_sentence(board.metrics[0], line.row).split(", ours")[0]) if figure else "")
            row[-1] += f": {_tex(figure['verdict'])}" if figure else ""
        lines.append(" & ".join(row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


_TEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"$\sim$",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "·": r"$\cdot$",
    "<": r"$<$",
    ">": r"$>$",
    "∞": r"$\infty$",
    # A row that begins with a bracket would be read as an option of the line break before it.
    "[": "{[}",
    "]": "{]}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(str(text).split())


def terminal(summary: Summary, width: int | None = None, color: bool = False) -> str:
    """The leaderboards as a terminal shows them; `color` adds its escape codes."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=color, no_color=not color, highlight=False)
    print_terminal(summary, console)
    return file.getvalue()


def print_terminal(summary: Summary, console: Any) -> None:
    """The same, onto a rich console that is at hand."""
    from rich.markup import escape
    from rich.table import Table

    for board in boards(summary):
        table = Table(title=escape(board.task), title_justify="left", title_style="bold", box=None, pad_edge=False)
        texts = [cells(board, line, summary["exclusive_timing"]) for line in board.lines]
        kept = _fitting([columns(board), *texts], console.width, board.beside)
        for place in kept:
            left = columns(board)[place] in ("model", "optimizer")
            table.add_column(escape(columns(board)[place]), justify="left" if left else "right", overflow="fold")
        for line, row in zip(board.lines, texts, strict=True):
            style = "dim" if line.is_baseline else "bold" if line.rank == 1 else ""
            table.add_row(*(escape(row[place]) for place in kept), style=style)
        console.print(table)
        for text in verdict_notes(board):
            console.print(escape(text), style="yellow")
        console.print()
    for text in failure_sentences(summary)[:20]:
        console.print(escape(text), style="red")
    if len(summary["failures"]) > 20:
        console.print(f"and {len(summary['failures']) - 20} failures more", style="red")
    for note in notes(summary):
        console.print(escape(note))


def _fitting(rows: list[list[str]], width: int, beside: list[str]) -> list[int]:
    """The columns that fit into a narrow terminal: the least important go first; rank, model and score stay.

    What stands `beside` the metrics was asked for, so it stays long.
    """
    kept = list(range(len(rows[0])))
    important = [
        "#",
        "model",
        "optimizer",
        *reversed(beside),
        "trials",
        "95 % interval",
        "verdict",
        "published",
        "parameters",
        "epochs",
        "s/epoch",
    ]
    score = important.index("optimizer")
    importance = {name: place for place, name in enumerate(important)}
    order = sorted(kept, key=lambda place: importance.get(rows[0][place], len(important)))
    first_metric = next((place for place in kept if rows[0][place] not in importance), None)
    if first_metric is not None:
        order.remove(first_metric)
        order.insert(score, first_metric)
    while len(kept) > 3 and sum(max(len(row[place]) for row in rows) + 2 for place in kept) - 2 > width:
        kept.remove(order.pop())
    return kept
