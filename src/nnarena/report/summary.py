"""What a study says, as plain data: the numbers behind every table and the page.

    {"study", "title", "rows": [{"task", "model", "optimizer", "trials", "failed", "parameters", "epochs",
     "seconds_per_epoch", "test": {metric: {"mean", "std", "low", "high"}}, "published": {metric: {…}}, "command"}],
     "baselines", "missing", "failures", "pending", "exclusive_timing", "ranked_by", "watch_test"}

Where the protocol watched the test, a row has "best_on_test" too, like "test": the metrics of the epochs that are best
on the test set. They are for comparison with publications that chose so, and rank nothing. Where models learn from what
they do, or the protocol watched the gradient, it has "training", like "test": what its last ten epochs, or the last,
were like, which ranks nothing either.

A row may have "beside", like "test" too, under the headings of tables: the ranking metric on the training samples and
the gap to the test (with `watch_training`), the first gradient (with `watch_gradient`), and what all seeds reach
together (after `nnarena ensemble`).

A row is a (task, model, optimizer); its seeds are repetitions. Means are over the trials that have test metrics: the
ones that are done, and the ones that diverged or ran out of time after a checkpoint was kept. Every trial that is not
done is counted in `failed` and listed in `failures`. Where answers are classes, a row has "collapsed": how many of its
trials gave all test samples, or almost all, the same one. The last metric of a task ranks its rows; a row without
results comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnarena.core.files import read_json
from nnarena.core.protocol import Protocol
from nnarena.core.study import Study
from nnarena.report.command import changed_settings, run_command, source_study
from nnarena.report.published import (
    BEST_ON_TEST,
    COLLAPSED,
    TRAINING,
    Figures,
    compare,
    figures_of,
    obstacle,
    read_figures,
)
from nnarena.results.folder import RESULT, TRIAL, TrialFolder
from nnarena.results.store import ENSEMBLES, PUBLISHED, TRIALS, Store
from nnarena.stats.intervals import Estimate, estimate, mean
from nnarena.stats.metrics import better, bounds, rank_key

if TYPE_CHECKING:
    import polars as pl

CELL = ("task", "model", "optimizer")
REASONS = {
    "diverged": "the loss became infinite or not a number",
    "timeout": "it took longer than the protocol allows",
    "out_of_memory": "the device had too little memory",
}
Cell = tuple[str, str, str]


def summarise(store: Store) -> dict[str, Any]:
    """The summary of a store as its folders are now."""
    return summarise_table(store, current_trials(store))


def summarise_table(store: Store, table: pl.DataFrame) -> dict[str, Any]:
    """The summary of a store, given its trials (see `current_trials`)."""
    import polars as pl

    study = store.study
    metrics = {task: _metrics(store, part) for (task,), part in table.group_by("task", maintain_order=True)}
    rows = _rows(store, table, metrics)
    timed = table.filter(pl.col("seconds_per_epoch").is_not_null())
    return {
        "study": study.name,
        "title": study.title,
        "rows": rows,
        "baselines": {task: _baselines(table.filter(pl.col("task") == task), names) for task, names in metrics.items()},
        "ranked_by": {task: names[-1] for task, names in metrics.items() if names},
        "missing": list(study.missing),
        "failures": _failures(table),
        "pending": _pending(study, table),
        "exclusive_timing": bool(timed["exclusive_timing"].fill_null(False).all()),
        "watch_test": study.protocol.watch_test,
    }


def current_trials(store: Store) -> pl.DataFrame:
    """The store's table with the newest trial of each (task, model, optimizer, seed), and references.

    Somebody's own component that was edited leaves the trials of its old version in the store; they are not
    repetitions of the new one. The columns `task_ref`, `model_ref` and `optimizer_ref` are what one types to get the
    component. Where two of a study have the same label (`a.py:Cell` and `b.py:Cell`), it becomes the label.
    """
    import polars as pl

    table = store.table()
    shown: dict[str, dict[str, set[str]]] = {kind: {} for kind in CELL}
    for grid in store.study.grids:
        for kind, choices in zip(CELL, (grid.tasks, grid.models, grid.optimizers), strict=True):
            for choice in choices:
                shown[kind].setdefault(choice.label, set()).add(str(choice))
    for kind in CELL:
        names = {label: next(iter(refs)) for label, refs in shown[kind].items()}
        table = table.with_columns(pl.col(kind).replace(names).alias(f"{kind}_ref"))
        shared = [label for label, refs in shown[kind].items() if len(refs) > 1]
        if shared:
            refs = [
                _asked(store, path, kind, label) if label in shared else ref
                for path, label, ref in table.select("path", kind, f"{kind}_ref").iter_rows()
            ]
            column = pl.Series(f"{kind}_ref", refs, dtype=pl.String)
            label = pl.when(pl.col(kind).is_in(shared)).then(pl.col(f"{kind}_ref")).otherwise(pl.col(kind))
            table = table.with_columns(column).with_columns(label.alias(kind))
    if table.select(*CELL, "seed").is_duplicated().any():
        ages = [(store.folder / TRIALS / path / RESULT).stat().st_mtime_ns for path in table["path"]]
        table = table.with_columns(pl.Series("age", ages)).sort("age")
        table = table.unique([*CELL, "seed"], keep="last", maintain_order=True).drop("age")
    return table.sort(*CELL, "seed", "path")


def _asked(store: Store, path: str, kind: str, label: str) -> str:
    """The reference that a trial was asked with, from its own record."""
    try:
        return str(read_json(store.folder / TRIALS / path / TRIAL).get(kind, label))
    except FileNotFoundError:
        return label


def _metrics(store: Store, table: pl.DataFrame) -> list[str]:
    """The test metrics of one task in the task's own order, which the columns of the table do not keep."""
    import polars as pl

    columns = [name for name in table.columns if name.startswith("test.") and not table[name].is_null().all()]
    if not columns:
        return []
    path = table.filter(pl.any_horizontal(pl.col(columns).is_not_null()))["path"][0]
    first = list(read_json(store.folder / TRIALS / path / RESULT).get("test") or {})
    known = [name.removeprefix("test.") for name in columns]
    return [name for name in known if name not in first] + [name for name in first if name in known]


def _rows(store: Store, table: pl.DataFrame, metrics: dict[str, list[str]]) -> list[dict[str, Any]]:
    study, source = store.study, source_study(store.study)
    settings = changed_settings(study, source)
    figures = read_figures(store.folder / PUBLISHED)
    together = _ensembles(store)
    tasks = {choice.label: place for place, choice in enumerate(c for grid in study.grids for c in grid.tasks)}
    rows = []
    for _, part in table.group_by(CELL, maintain_order=True):
        refs = tuple(part[f"{kind}_ref"][0] for kind in CELL)
        row = _row(part, metrics[part["task"][0]])
        if study.protocol.watch_test:
            row["best_on_test"] = _best_on_test(store, part, metrics[part["task"][0]])
        hindrance = obstacle(study, source, refs[0], refs[2]) if figures else ""
        row |= {} if (collapsed := _collapsed(part)) is None else {"collapsed": collapsed}
        row |= {"training": training} if (training := _training(part)) else {}
        beside = _beside(study.protocol, part, metrics[part["task"][0]]) | _together(together, part, metrics)
        row |= {"beside": beside} if beside else {}
        row["published"] = _published(part, figures, hindrance, row.get("best_on_test", {}))
        row["command"] = run_command(study, settings, *refs)
        rows.append(row)
    return sorted(rows, key=lambda row: _order(row, tasks, metrics[row["task"]]))


def _order(row: dict[str, Any], tasks: dict[str, int], metrics: list[str]) -> tuple[Any, ...]:
    value = row["test"][metrics[-1]]["mean"] if metrics else None
    key = rank_key(metrics[-1], value) if metrics else (True, 0.0)
    return tasks.get(row["task"], len(tasks)), row["task"], *key, row["model"], row["optimizer"]


def _row(part: pl.DataFrame, metrics: list[str]) -> dict[str, Any]:
    scored = _scored(part, metrics)
    return {
        **{kind: part[kind][0] for kind in CELL},
        "trials": part.height,
        "failed": int((part["status"] != "done").sum()),
        "parameters": next((int(count) for count in part["parameters"] if count is not None), None),
        "epochs": _mean(scored, "epochs"),
        "seconds_per_epoch": _mean(scored, "seconds_per_epoch"),
        "test": {metric: _estimate(scored, metric).as_dict() for metric in metrics},
    }


def _estimate(scored: pl.DataFrame, metric: str) -> Estimate:
    return estimate(_values(scored, f"test.{metric}")).within(*bounds(metric))


def _best_on_test(store: Store, part: pl.DataFrame, metrics: list[str]) -> dict[str, Any]:
    curves = [TrialFolder(store.folder / TRIALS / path).curve() for path in part["path"]]
    values = {
        metric: [best for curve in curves if (best := best_on_test(curve, metric)) is not None] for metric in metrics
    }
    return {metric: estimate(found).within(*bounds(metric)).as_dict() for metric, found in values.items() if found}


def _collapsed(part: pl.DataFrame) -> int | None:
    """How many trials collapsed; None if that was asked of none of them."""
    return None if part["collapsed"].is_null().all() else int(part["collapsed"].sum())


def _training(part: pl.DataFrame) -> dict[str, Any]:
    columns = [name for name in part.columns if name.startswith(TRAINING) and not part[name].is_null().all()]
    return {name.removeprefix(TRAINING): estimate(_values(part, name)).as_dict() for name in columns}


def _beside(protocol: Protocol, part: pl.DataFrame, metrics: list[str]) -> dict[str, Any]:
    """What was watched of the training, as columns."""
    found = {}
    column, test = (f"{kind}.{metrics[-1]}" for kind in ("training", "test")) if metrics else ("", "")
    if protocol.watch_training and column in part.columns:
        both = part.filter(part[column].is_not_null() & part[test].is_not_null())
        found[f"training {metrics[-1]}"] = estimate(_values(both, column)).as_dict()
        gaps = [one - other for one, other in zip(_values(both, column), _values(both, test), strict=True)]
        found["gap"] = estimate([gap if better(metrics[-1]) == "higher" else -gap for gap in gaps]).as_dict()
    if protocol.watch_gradient and f"{TRAINING}first_gradient" in part.columns:
        found["first gradient"] = estimate(_values(part, f"{TRAINING}first_gradient")).as_dict()
    return found


def _ensembles(store: Store) -> list[dict[str, Any]]:
    try:
        return read_json(store.folder / ENSEMBLES)["ensembles"]
    except FileNotFoundError:
        return []


def _together(ensembles: list[dict[str, Any]], part: pl.DataFrame, metrics: dict[str, list[str]]) -> dict[str, Any]:
    """What the seeds of a row reach together, if they are those that were asked."""
    for item in ensembles:
        names = metrics[part["task"][0]]
        if (
            set(item["trials"]) == set(part.filter(part["status"] == "done")["id"])
            and names
            and names[-1] in item["test"]
        ):
            metric = names[-1]
            gain = item["test"][metric] - item["single"][metric]
            values = (item["test"][metric], gain if better(metric) == "higher" else -gain)
            alone = {"std": None, "low": None, "high": None}
            return {name: {"mean": value} | alone for name, value in zip(("together", "gain"), values, strict=True)}
    return {}


def best_on_test(curve: list[dict[str, Any]], metric: str) -> float | None:
    """The best value of a metric on the test in any epoch; None if no epoch recorded it."""
    values = [line["test"][metric] for line in curve if line.get("test", {}).get(metric) is not None]
    return min(values, key=lambda value: rank_key(metric, value), default=None)


def _published(part: pl.DataFrame, figures: Figures, hindrance: str, best_on_test: dict[str, Any]) -> dict[str, Any]:
    compared = {}
    for figure in figures_of(figures, part["task"][0], part["model"][0], part["optimizer"][0]):
        if figure.metric.startswith(BEST_ON_TEST):
            if figure.metric.removeprefix(BEST_ON_TEST) in best_on_test:
                compared[figure.metric] = compare(figure, [], 0, hindrance)
            continue
        own = figure.metric in ("parameters", "epochs", COLLAPSED) or figure.metric.startswith(TRAINING)
        column = figure.metric if own else f"test.{figure.metric}"
        if column not in part.columns:
            continue
        counted = part if column == "parameters" else _scored(part, [])
        values = _values(counted, column)
        if column == COLLAPSED and not values:
            continue
        compared[figure.metric] = compare(figure, values, part.height - len(values), hindrance)
    return compared


def _scored(part: pl.DataFrame, metrics: list[str]) -> pl.DataFrame:
    """The trials that have test metrics."""
    import polars as pl

    columns = [f"test.{metric}" for metric in metrics] or [name for name in part.columns if name.startswith("test.")]
    return part.filter(pl.any_horizontal(pl.col(columns).is_not_null())) if columns else part.clear()


def _values(part: pl.DataFrame, column: str) -> list[float]:
    return part[column].drop_nulls().to_list()


def _mean(part: pl.DataFrame, column: str) -> float | None:
    values = _values(part, column)
    return mean(values) if values else None


def _baselines(part: pl.DataFrame, metrics: list[str]) -> list[dict[str, Any]]:
    """What one gets without a model, averaged over seeds (rivals with the same seed have the same data)."""
    import polars as pl

    columns = [name for name in part.columns if name.startswith("baseline.") and not part[name].is_null().all()]
    seeds = part.group_by("seed", maintain_order=True).agg(pl.col(columns).mean())
    found: dict[str, dict[str, float]] = {}
    for column in columns:
        name, _, metric = column.removeprefix("baseline.").rpartition(".")
        if metric in metrics:
            found.setdefault(name, {})[metric] = mean(_values(seeds, column))
    ordered = {name: {metric: found[name][metric] for metric in metrics if metric in found[name]} for name in found}
    return [{"name": name, "test": scores} for name, scores in ordered.items()]


def _failures(table: pl.DataFrame) -> list[dict[str, Any]]:
    import polars as pl

    bad = table.filter(pl.col("status") != "done").select("path", "id", *CELL, "seed", "status", "error")
    found = []
    for line in bad.iter_rows(named=True):
        error = line.pop("error")
        found.append(line | {"reason": error or REASONS.get(line["status"], "no reason was recorded")})
    return found


def _pending(study: Study, table: pl.DataFrame) -> int:
    """How many trials of the study have no result. Counted by name, so that nobody's own code must be imported."""
    done: dict[Cell, int] = {}
    for *cell, seed in table.select("task_ref", "model_ref", "optimizer_ref", "seed").iter_rows():
        if seed < study.seeds:
            done[tuple(cell)] = done.get(tuple(cell), 0) + 1
    asked = {
        (str(task), str(model), str(optimizer))
        for grid in study.grids
        for task in grid.tasks
        for model in grid.models
        for optimizer in grid.optimizers
    }
    return sum(max(0, study.seeds - done.get(cell, 0)) for cell in asked)
