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

from nnarena.core.count import counted
from nnarena.core.files import finite, replacing
from nnarena.core.options import render
from nnarena.core.protocol import Protocol
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
from nnarena.report.words import read_words, words_html
from nnarena.results.folder import RESULT
from nnarena.results.store import TRIALS, Store
from nnarena.stats.metrics import better
from nnarena.stats.verdicts import RULE

if TYPE_CHECKING:
    import polars as pl

HERE = Path(__file__).parent
FAILURES_SHOWN = 200
TESTED = {
    ("samples", "best"): "<b>The test set is read once,</b> by the checkpoint that was best on the validation data.",
    ("samples", "last"): "<b>The test set is read</b> for the result once, by the weights of the last epoch.",
    ("episodes", "best"): "<b>The test is taken once,</b> in episodes of its own, by the checkpoint that was best in "
    "those of the validation. Both are apart from training.",
    ("episodes", "last"): "<b>The test is taken once,</b> in episodes of its own, by the weights of the last epoch. It "
    "is apart from training.",
    ("words", "best"): "<b>The test questions are asked once,</b> of the reading that answered those of the validation "
    "best. No question is read in training.",
    ("words", "last"): "<b>The test questions are asked once,</b> of the last reading. No question is read in "
    "training.",
    **dict.fromkeys(
        [("surfaces", "best"), ("surfaces", "last")],
        "<b>There is no test apart:</b> a surface has nothing to generalise to. Validation and test are the same look "
        "at a place, without noise.",
    ),
}
SHARED = {
    "samples": "saw the same data, the same splits and the same order of batches.",
    "episodes": "began with the same critics, practised in environments of the same seed, and were examined in "
    "episodes that began alike.",
    "words": "read the same corpus and were asked the same questions.",
    "surfaces": "began at the same place and had the same noise at every step.",
}
# Settings of the protocol that are said by name where they are set.
SAID = ("init", "clip_norm", "clip_value", "l1", "l2", "dropout", "input_noise", "weight_noise", "label_smoothing")
SAID += ("label_noise", "bagging", "same_data", "full_batch")


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
    return f"{_listed([*models])} on {_listed([*tasks])}"


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _age(store: Store, path: str) -> float:
    return (store.folder / TRIALS / path / RESULT).stat().st_mtime


def protocol_line(store: Store, table: pl.DataFrame) -> str:
    """How every trial was trained, in one line."""
    protocol, options, kinds = store.study.protocol, practice_options(store, table), kinds_of_test(store, table)
    plain = "samples" in kinds
    parts = [
        f"{counted(store.study.seeds, 'seed')} each",
        f"at most {counted(protocol.epochs, 'epoch')}" if plain else _epochs(protocol, options, kinds),
        *(
            [f"batches of {protocol.batch_size}{' central words' * (kinds == ['words'])}"]
            if kinds != ["surfaces"]
            else []
        ),
    ]
    if plain:
        train = 1 - protocol.test_fraction - protocol.validation_fraction
        parts.append(
            f"{train:.0%} training, {protocol.validation_fraction:.0%} validation, {protocol.test_fraction:.0%} test, "
            "or the test that a publisher set aside"
        )
    several = len(kinds) > 1
    if "episodes" in kinds:
        each = _of(options, "episodes", ", in")
        parts.append(f"{'of agents, ' * several}validation and test apart from training{each and f'{each} each'}")
    if "words" in kinds:
        parts.append(f"{'of words, ' * several}half of the questions validate, the other half is the test")
    parts += [falls(protocol)] if plain or protocol.schedule != "plateau" else []
    parts += [f"learning rate rising over {counted(protocol.warmup, 'epoch')} first"] if protocol.warmup else []
    parts += [f"end after {counted(protocol.stop_patience, 'epoch')} without progress"] if plain else []
    parts += [f"{name} = {render(value)}" for name in SAID if (value := getattr(protocol, name)) not in (None, False)]
    parts += ["the weights of the last epoch are tested"] if protocol.select == "last" else []
    parts += ["the test watched in every epoch"] if protocol.watch_test else []
    parts += ["the gradients watched"] if protocol.watch_gradient else []
    parts += [f"products in {protocol.precision}"] if protocol.precision != "float32" else []
    parts += [f"{counted(protocol.samples, 'sample')} at most"] if protocol.samples and plain else []
    parts += [f"learning rate {protocol.lr:g}"] if protocol.lr else []
    parts += [f"at most {protocol.timeout:g} s a trial"] if protocol.timeout else []
    return " · ".join(parts)


def practice_options(store: Store, table: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """The options of every task whose models learn from what they do: its results say what their training was like.

    So do others where the protocol watches training, and then there is no task of this kind: they refuse it.
    """
    import polars as pl

    if store.study.protocol.watch_training or store.study.protocol.watch_gradient:
        return {}
    columns = [name for name in table.columns if name.startswith("training.")]
    found = table.filter(pl.any_horizontal(pl.col(columns).is_not_null())) if columns else table.clear()
    return {task: json.loads(options)["task"] for task, options in found.select("task", "options").iter_rows()}


def all_practise(store: Store, table: pl.DataFrame) -> bool:
    """Whether no task of the study has samples, and so no splits of them."""
    options = practice_options(store, table)
    return bool(options) and set(options) == set(table["task"])


def kinds_of_test(store: Store, table: pl.DataFrame) -> list[str]:
    """What the tasks of the study are tested by, as `TESTED` calls it, each kind once."""
    found = dict.fromkeys(map(practice_kind, practice_options(store, table).values()))
    return [*found] if all_practise(store, table) else ["samples", *found]


def practice_kind(options: dict[str, Any]) -> str:
    """What a task without samples is tested by; its options tell it."""
    if {"of", "start", "noise"} <= options.keys():
        return "surfaces"
    return "words" if {"corpus", "tokens", "vocabulary"} <= options.keys() else "episodes"


def _epochs(protocol: Protocol, options: dict[str, dict[str, Any]], kinds: list[str]) -> str:
    """How long a study trains whose tasks have no samples."""
    if kinds != ["words"]:
        return f"{counted(protocol.epochs, 'epoch')}{_of(options, 'steps', ' of')}"
    said = sorted({given["tokens"] for given in options.values()})
    words = f"of at most {' or '.join(f'{value:,}' for value in said)} words"
    return (
        f"1 reading {words}" if protocol.epochs == 1 else f"{protocol.epochs} readings {words}, 1 by models that count"
    )


def _of(options: dict[str, dict[str, Any]], name: str, before: str) -> str:
    """`, 10 episodes`: what tasks say of it, or nothing."""
    said = sorted({given[name] for given in options.values() if name in given})
    return f"{before} {' or '.join(f'{value:,}' for value in said)} {name}" if said else ""


def falls(protocol: Protocol) -> str:
    """When the learning rate falls, and to what."""
    if protocol.schedule == "steps":
        when = f"epoch{'s' * (len(protocol.milestones) > 1)} {_listed([*map(str, protocol.milestones)])}"
        return f"learning rate × {protocol.step_factor:g} after {when}"
    if protocol.schedule == "exponential":
        return f"learning rate × {protocol.lr_decay:g} after every epoch"
    if protocol.schedule == "cosine":
        return "learning rate falling to 0 along a cosine"
    patience = counted(protocol.plateau_patience, "epoch")
    return f"learning rate × {protocol.plateau_factor:g} after {patience} without progress"


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
