"""A leaderboard as HTML. It reads and prints without the scripts; they add sorting, filtering and unfolding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from nnarena.core.count import counted
from nnarena.report.numbers import NONE, number, whole
from nnarena.report.ranking import (
    Board,
    Line,
    beside_text,
    collapsed_text,
    published_figure,
    score_texts,
    verdict_sentence,
)
from nnarena.report.strips import Axis, axis, scale, strip
from nnarena.stats.metrics import better

Competitor = tuple[str, str]
COLORS = 10  # as many as the style sheet has; beyond it, lines are dashed


def competitors(summary: Mapping[str, Any]) -> list[Competitor]:
    """Every (model, optimizer), in a fixed order: a competitor has the same colour on every task."""
    return sorted({(row["model"], row["optimizer"]) for row in summary["rows"]})


def paragraph(text: str, kind: str = "meta") -> str:
    """What stands in `backticks` is typed, and looks like it."""
    shown = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f'<p class="{kind}">{shown}</p>'


def board_html(
    number_: int,
    board: Board,
    place: Mapping[Competitor, int],
    seeds: Mapping[tuple[str, str, str], list[float]],
    exclusive: bool,
) -> str:
    """One task's section: headline, table, and the room for its curves."""
    common = _axis(board, seeds)
    rows = "".join(_row(board, line, place, seeds, common, exclusive) for line in board.lines)
    count = sum(not line.is_baseline for line in board.lines)
    about = counted(count, "competitor")
    if board.metrics:
        about += f", ranked by test {board.metrics[0]}: {better(board.metrics[0])} is better"
    return (
        f'<section class="task" id="task-{number_}" data-task="{number_}"><h2>{escape(board.task)}</h2>'
        f"{paragraph(about)}"
        f'<div class="scroll"><table class="board"><thead><tr>{_head(board, common)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f'<div class="curves"></div></section>'
    )


def _axis(board: Board, seeds: Mapping[tuple[str, str, str], list[float]]) -> Axis | None:
    if not board.metrics:
        return None
    metric = board.metrics[0]
    rows = [line.row for line in board.lines if line.row]
    values = [value for row in rows for value in seeds.get((board.task, row["model"], row["optimizer"]), [])]
    extras = [line.score(metric) for line in board.lines if line.is_baseline]
    extras += [row["published"][metric]["mean"] for row in rows if metric in row["published"]]
    ends = [row["test"][metric][end] for row in rows for end in ("low", "high")]
    return axis(
        values,
        [value for value in extras if value is not None],
        [value for value in ends if value is not None],
        may_be_log=better(metric) == "lower",
    )


def _head(board: Board, common: Axis | None) -> str:
    def sortable(text: str, kind: str = "number", sort: str = "none") -> str:
        return (
            f'<th scope="col" class="{kind}" aria-sort="{sort}"><button type="button" data-kind="{kind}">'
            f"{escape(text)}<i></i></button></th>"
        )

    heads = [sortable("#", sort="ascending"), sortable("model", "text")]
    if len(board.optimizers) > 1:
        heads.append(sortable("optimizer", "text"))
    for place, metric in enumerate(board.metrics):
        heads.append(sortable(metric))
        if place == 0:
            if common:
                log = " (log)" if common.log else ""
                heads.append(f'<th scope="col" class="drawn">mean, 95 % interval, seeds{log}{scale(common)}</th>')
            if board.has_published:
                heads.append(sortable("published"))
    heads += [sortable(text) for text in (*board.beside, "parameters", "epochs", "s/epoch", "trials")]
    return "".join(heads)


def _row(
    board: Board,
    line: Line,
    place: Mapping[Competitor, int],
    seeds: Mapping[tuple[str, str, str], list[float]],
    common: Axis | None,
    exclusive: bool,
) -> str:
    row = line.row
    cells = [_cell("" if line.rank is None else str(line.rank), line.rank, "rank")]
    if line.is_baseline:
        cells.append(_cell(f'<span class="name">{escape(line.name)}</span> <small>baseline</small>', line.name, "text"))
    else:
        cells.append(
            _cell(
                f'<button type="button" class="unfold" aria-expanded="false"><span class="swatch"></span>'
                f'<span class="name">{escape(line.name)}</span></button>',
                line.name,
                "text",
            )
        )
    if len(board.optimizers) > 1:
        cells.append(_cell(breakable(row.get("optimizer", "")), row.get("optimizer", ""), "text options"))
    for number_, metric in enumerate(board.metrics):
        mean, spread = score_texts(line, metric)
        below = "" if line.is_baseline or spread == NONE else f'<span class="below">{escape(spread)}</span>'
        # Beside the score that it explains, where no narrow window cuts it off.
        fate = "" if number_ else "".join(f'<span class="below failed">{text}</span>' for text in collapsed_text(row))
        cells.append(_cell(_soft(mean) + below + fate, line.score(metric), "" if number_ else "score"))
        if number_ == 0:
            if common:
                values = seeds.get((board.task, line.name, row.get("optimizer", "")), [])
                cells.append(f'<td class="drawn">{_strip(common, line, metric, values)}</td>')
            if board.has_published:
                cells.append(_published(line, metric))
    for name in board.beside:
        cells.append(_cell(_soft(beside_text(line, name)), row.get("beside", {}).get(name, {}).get("mean")))
    if line.is_baseline:
        return f'<tr class="baseline">{"".join(cells)}{"<td></td>" * 4}</tr>'
    seconds = number(row["seconds_per_epoch"])
    failed = f'<span class="below failed">{row["failed"]} failed</span>' if row["failed"] else ""
    cells += [
        _cell(whole(row["parameters"]), row["parameters"]),
        _cell(number(row["epochs"]), row["epochs"]),
        _cell(seconds if exclusive or seconds == NONE else f"~{seconds}", row["seconds_per_epoch"]),
        _cell(f"{row['trials']}{failed}", row["trials"]),
    ]
    who = place[row["model"], row["optimizer"]]
    best = " first" if line.rank == 1 else ""
    return f'<tr class="who c{who % COLORS} dash{who // COLORS % 3}{best}" data-who="{who}">{"".join(cells)}</tr>'


def breakable(label: str) -> str:
    """A name with its options, which may go on in the next line after a bracket or a comma."""
    return escape(label).replace("[", "[<wbr>").replace(",", ",<wbr>")


def _cell(content: str, value: Any, kind: str = "") -> str:
    sort = "" if value is None else f' data-v="{escape(str(value))}"'
    name = f' class="{kind}"' if kind else ""
    return f"<td{name}{sort}>{content}</td>"


def _strip(common: Axis, line: Line, metric: str, values: list[float]) -> str:
    mean, low, high = (line.score(metric, what) for what in ("mean", "low", "high"))
    if mean is None:
        return ""
    interval = (low, high) if low is not None and high is not None else None
    published = line.row.get("published", {}).get(metric, {}).get("mean")
    texts = score_texts(line, metric)
    return strip(common, values, mean, interval, published, escape(f"{line.name}: {texts[0]}, {texts[1]}"))


def _published(line: Line, metric: str) -> str:
    figure = line.row.get("published", {}).get(metric)
    if not figure:
        return _cell("", None)
    verdict = figure["verdict"]
    kind = {"reproduced": "good", "undecided": "open", "not comparable": "open"}.get(verdict, "bad")
    text = _soft(published_figure(metric, figure))
    others = [f"{name}: {verdict_sentence(name, line.row)}" for name in line.row["published"]]
    title = escape("\n".join(others))
    badge = f'<span class="badge {kind}" title="{title}">{escape(verdict)}</span>'
    return _cell(f'{text}<span class="below">{badge}</span>', figure["mean"], "published")


def _soft(text: str) -> str:
    """`mean ± std` with the spread in a softer colour."""
    mean, sign, std = text.partition(" ± ")
    return f'{escape(mean)}<span class="std"> ± {escape(std)}</span>' if sign else escape(text)
