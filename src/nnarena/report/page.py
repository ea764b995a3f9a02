"""The report as one HTML file that opens anywhere, offline: style, script and data are in it, and nothing is fetched.

`write_page(store, path)` puts together what the modules beside this one make: the summary, the leaderboards
(`board.py`), the drawings in them (`strips.py`), the thinned curves (`curves.py`), tuned learning rates and paths on
surfaces (`paths.py`), what was looked at (`looked.py`) and what models looked at (`attention.py`), `page.html`,
`page.css` and the scripts: `page.js` sorts, filters and unfolds; `chart.js` draws the curves; `paths.js` lets paths
walk.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from nnarena.core.files import finite, replacing
from nnarena.report.attention import attention_html
from nnarena.report.board import board_html, competitors, paragraph
from nnarena.report.command import shown_folder
from nnarena.report.curves import BUDGET, allowance, read_curve, short
from nnarena.report.gradients import Lengths, gradients_html, read_gradients
from nnarena.report.looked import looked_html
from nnarena.report.paths import read_path, tuned_html
from nnarena.report.published import NOT_COMPARABLE, TRAINING
from nnarena.report.ranking import ABOUT_COLLAPSED, WATCHED, Board, boards
from nnarena.report.summary import CELL, current_trials, summarise_table
from nnarena.report.tuned import tuned
from nnarena.report.wording import SHARED, TESTED, kinds_of_test, listed, protocol_line
from nnarena.report.words import read_words, words_html
from nnarena.results.folder import RESULT
from nnarena.results.store import TRIALS, Store
from nnarena.stats.metrics import better
from nnarena.stats.verdicts import RULE

if TYPE_CHECKING:
    import polars as pl

HERE = Path(__file__).parent
FAILURES_SHOWN = 200


def write_page(store: Store, path: Path, budget: int = BUDGET) -> None:
    """Write the report of `store` to `path`, whole or not at all. `budget` is how many curve points it may hold."""
    with replacing(path) as file:
        file.write(build_page(store, budget).encode())


def build_page(store: Store, budget: int = BUDGET) -> str:
    """The whole file as text."""
    table = current_trials(store)
    summary = summarise_table(store, table)
    data, thinned = _data(store, table, summary, budget)
    found = boards(summary)
    place = {cell: number for number, cell in enumerate(competitors(summary))}
    seeds = {(line["task"], *line["competitor"]): line["values"] for line in data.pop("seeds")}
    sections = [
        board_html(number, board, place, seeds, summary["exclusive_timing"])
        + _tuned(store, table, number, board, place)
        + _gradients(store, table, summary, board, place)
        + _words(store, table, summary, board)
        for number, board in enumerate(found)
    ]
    looked = looked_html(store, table)
    walks = any('<section class="tuned">' in section for section in sections)
    drawn = any('<section class="gradients">' in section for section in sections)
    extra = [name for name, there in (("look", looked), ("paths", walks), ("figure", drawn)) if there]
    links = [(f"task-{number}", board.task) for number, board in enumerate(found)]
    links += [("looked", "looked at")] if looked else []
    names = {
        "title": escape(headline(store, summary)),
        "style": "".join((HERE / f"{name}.css").read_text() for name in ("page", *extra)),
        "script": "".join(
            (HERE / f"{name}.js").read_text() for name in ("chart", "page", *(["paths"] if walks else []))
        ),
        "data": embedded(data),
        "header": _header(store, table, summary),
        "tested": " ".join(TESTED[kind, store.study.protocol.select] for kind in kinds_of_test(store, table)),
        "shared": " They ".join(SHARED[kind] for kind in kinds_of_test(store, table)),
        "nav": "".join(f'<a href="#{place}">{escape(name)}</a>' for place, name in links),
        "boards": "".join(sections) or '<p class="empty">No trial of this study is finished yet.</p>',
        "looked": looked,
        "attention": attention_html(store.folder / TRIALS, table),
        "failures": _failures(summary),
        "notes": _notes(summary, thinned, budget),
        "rule": escape(RULE),
    }
    return Template((HERE / "page.html").read_text()).substitute(names)


def embedded(data: Any) -> str:
    """JSON that no text inside it can end early: `</script>` and its kin are written as escapes."""
    text = json.dumps(finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(store: Store, table: pl.DataFrame, summary: dict[str, Any], budget: int) -> tuple[dict[str, Any], int | None]:
    """What the scripts work with, and the most points a curve has if curves were thinned."""
    place = {cell: number for number, cell in enumerate(competitors(summary))}
    tasks = {board.task: number for number, board in enumerate(boards(summary))}
    commands = {tuple(row[kind] for kind in CELL): row["command"] for row in summary["rows"]}
    limit = allowance([count or 0 for count in table["epochs"]], budget)
    metrics = [name for name in table.columns if name.startswith(("test.", TRAINING))]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    values: dict[tuple[str, ...], list[float]] = {}
    spent = 0
    for trial in table.iter_rows(named=True):
        cell = tuple(trial[kind] for kind in CELL)
        row = rows.setdefault(
            cell, {"task": tasks[cell[0]], "who": place[cell[1:]], "command": commands[cell], "trials": []}
        )
        entry = {key: trial[key] for key in ("id", "seed", "status", "collapsed", "epochs", "best_epoch")}
        known = [name for name in metrics if trial[name] is not None]
        entry["numbers"] = {name.removeprefix("test."): short(trial[name]) for name in known}
        if spent < budget:
            entry["curve"] = read_curve(store.folder / TRIALS / trial["path"], limit)
            spent += len(entry["curve"]["epoch"]) if entry["curve"] else 0
        row["trials"].append(entry)
        score = trial.get(f"test.{summary['ranked_by'].get(cell[0])}")
        if score is not None:
            values.setdefault(cell, []).append(score)
    return {
        "folder": shown_folder(store.folder),
        "who": [_competitor_name(summary, cell) for cell in competitors(summary)],
        "tasks": [
            {"name": task, "metric": metric, "better": better(metric)}
            for task, metric in ((task, summary["ranked_by"].get(task, "")) for task in tasks)
        ],
        "rows": list(rows.values()),
        "seeds": [{"task": cell[0], "competitor": cell[1:], "values": found} for cell, found in values.items()],
    }, limit


def _competitor_name(summary: dict[str, Any], cell: tuple[str, str]) -> str:
    several = len({row["optimizer"] for row in summary["rows"]}) > 1
    return " · ".join(cell) if several else cell[0]


def _tuned(store: Store, table: pl.DataFrame, number: int, board: Board, place: dict[tuple[str, str], int]) -> str:
    """Every optimizer at its best learning rate, and the paths of trials on a surface."""
    if not board.metrics:
        return ""
    found = tuned(table, board.task, board.metrics[0])
    read = {trial["id"]: read_path(store.folder / TRIALS / trial["path"]) for one in found for trial in one.trials}
    paths = {trial: path for trial, path in read.items() if path}
    return tuned_html(number, board.task, found, board.metrics, place, paths)


def _gradients(
    store: Store, table: pl.DataFrame, summary: dict[str, Any], board: Board, place: dict[tuple[str, str], int]
) -> str:
    """How long the gradients of all weights were, the best competitor first."""
    if not store.study.protocol.watch_gradient:
        return ""
    found: dict[tuple[str, str], list[Lengths]] = {}
    for trial in table.iter_rows(named=True):
        lengths = read_gradients(store.folder / TRIALS / trial["path"]) if trial["task"] == board.task else None
        if lengths:
            found.setdefault((trial["model"], trial["optimizer"]), []).append(lengths)
    order = [(line.row["model"], line.row["optimizer"]) for line in board.lines if not line.is_baseline]
    shown = [(_competitor_name(summary, cell), place[cell], found.get(cell, [])) for cell in order]
    return gradients_html(board.task, shown)


def _words(store: Store, table: pl.DataFrame, summary: dict[str, Any], board: Board) -> str:
    """What competitors on words have learned, the best first, each by its first trial that shows it."""
    trials = [trial for trial in table.iter_rows(named=True) if trial["task"] == board.task]
    shown = []
    for row in (line.row for line in board.lines if not line.is_baseline):
        for trial in sorted(trials, key=lambda trial: trial["seed"]):
            if (trial["model"], trial["optimizer"]) == (row["model"], row["optimizer"]):
                content = read_words(store.folder / TRIALS / trial["path"])
                if content:
                    shown.append((_competitor_name(summary, (row["model"], row["optimizer"])), trial["seed"], content))
                    break
    return words_html(board.task, shown)


def _header(store: Store, table: pl.DataFrame, summary: dict[str, Any]) -> str:
    done = table.height - len(summary["failures"])
    tiles: list[tuple[str, str, str]] = [
        (f"{done:,}", "trial done" if done == 1 else "trials done", ""),
        (f"{len(summary['failures']):,}", "failed", "bad" if summary["failures"] else ""),
        (f"{summary['pending']:,}", "to come", ""),
    ]
    if collapsed := sum(row.get("collapsed", 0) for row in summary["rows"]):
        tiles.insert(2, (f"{collapsed:,}", "collapsed", "bad"))
    verdicts = [
        figure["verdict"]
        for row in summary["rows"]
        for metric, figure in row["published"].items()
        if metric == summary["ranked_by"].get(row["task"]) and figure["verdict"] != NOT_COMPARABLE
    ]
    if verdicts:
        tiles.append((f"{verdicts.count('reproduced')} of {len(verdicts)}", "published results reproduced", ""))
    shown = "".join(f'<div class="tile {kind}"><b>{value}</b><span>{text}</span></div>' for value, text, kind in tiles)
    newest = max((_age(store, path) for path in table["path"]), default=None)
    when = datetime.fromtimestamp(newest, UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0") if newest else "none yet"
    return (
        f'<p class="study">{escape(summary["study"])}</p>'
        f"<h1>{escape(headline(store, summary))}</h1>"
        f'<p class="protocol">{escape(protocol_line(store, table))}</p>'
        f'<div class="tiles">{shown}<div class="tile date"><b>{when}</b><span>newest result</span></div></div>'
    )


def headline(store: Store, summary: dict[str, Any]) -> str:
    """The study's title; without one, who meets on what, or the study's name if that is too much to say."""
    models = dict.fromkeys(choice.name for grid in store.study.grids for choice in grid.models)
    tasks = dict.fromkeys(choice.name for grid in store.study.grids for choice in grid.tasks)
    if summary["title"]:
        return summary["title"]
    if store.study.source or len(models) > 6 or len(tasks) > 4:
        return summary["study"]
    return f"{listed([*models])} on {listed([*tasks])}"


def _age(store: Store, path: str) -> float:
    return (store.folder / TRIALS / path / RESULT).stat().st_mtime


def _failures(summary: dict[str, Any]) -> str:
    failures = summary["failures"]
    if not failures:
        return ""
    lines = "".join(
        f'<tr><td><span class="badge bad">{escape(item["status"].replace("_", " "))}</span></td>'
        f"<td>{escape(item['task'])}</td><td>{escape(item['model'])}</td><td>{escape(item['optimizer'])}</td>"
        f"<td>{item['seed']}</td><td><code>{escape(item['id'])}</code></td>"
        f'<td class="reason">{escape(str(item["reason"]))}</td></tr>'
        for item in failures[:FAILURES_SHOWN]
    )
    more = len(failures) - FAILURES_SHOWN
    rest = paragraph(f"And {more} more; `report --format json` has them all.") if more > 0 else ""
    heads = "".join(f"<th>{name}</th>" for name in ("status", "task", "model", "optimizer", "seed", "trial", "reason"))
    return (
        f'<section id="failures"><h2>What failed</h2><p class="meta">Trials that did not end well: '
        f"{len(failures):,}. They are counted in their rows and never dropped.</p>"
        f'<div class="scroll"><table class="plain"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
        f"{rest}</section>"
    )


def _notes(summary: dict[str, Any], limit: int | None, budget: int) -> str:
    notes = []
    if not summary["exclusive_timing"] and summary["rows"]:
        notes.append("Seconds marked ~ were measured while other trials ran on the same device.")
    if summary["watch_test"]:
        notes.append(WATCHED)
    if any(row.get("collapsed") for row in summary["rows"]):
        notes.append(ABOUT_COLLAPSED)
    if summary["missing"]:
        notes.append(f"This version lacks models of the study: {', '.join(summary['missing'])}.")
    if limit is not None:
        notes.append(
            f"The curves are thinned to {limit} epochs each, so that this file holds at most {budget:,} points; the "
            "store has all of them."
        )
    return "".join(paragraph(note, "note") for note in notes)
