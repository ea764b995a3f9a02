"""Published figures beside ours: `published.csv` of a store, with the columns task, model, metric, mean, std, runs.

A figure belongs to a row of the same task and model, and of the same optimizer where there is a column `optimizer`. A
task is named with its options, or without them for all its variants that are not in the file themselves. The comparison
is fair only if the row was made as the study file says: the same options of the task, the same optimizer, the same
protocol. A rehearsal of one epoch is not a failed reproduction, so such rows are **not comparable**, with the reason.

A metric such as `best_on_test.accuracy` is that of the epoch which is best on the test set. Whoever chooses by the test
knows the answers, so it is never comparable, and stands beside ours only where the protocol watched the test. One such
as `training.reward_per_step` is of the last ten epochs of a model that learns from what it does, and of the last epoch
of another, where the protocol watched its gradient. `collapsed` is 1 where the published model gave all samples the
same class, and 0 where it is said to have done better.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnarena.core.errors import BadOption, StoreError
from nnarena.core.options import parse_choice
from nnarena.core.study import Study
from nnarena.stats.metrics import better
from nnarena.stats.verdicts import REPRODUCED, UNDECIDED, reproduced, resolution

# Published times were measured on other machines: they are not compared.
TIMES = ("seconds_total", "seconds_per_epoch")
# Settings that do not change what is learned.
HARMLESS = ("timeout", "threads", "watch_test", "watch_gradient")
NOT_COMPARABLE = "not comparable"
EQUAL, DIFFERS = "equal", "differs"
COLLAPSED = "collapsed"
BEST_ON_TEST, TRAINING = "best_on_test.", "training."


@dataclass(frozen=True)
class Figure:
    """One published figure, as printed."""

    metric: str
    mean: float
    std: float | None
    runs: int | None
    rounding: float


Figures = dict[tuple[str, str, str], list[Figure]]


def read_figures(path: Path) -> Figures:
    """All figures of a file, by (task, model, optimizer), which may be empty; none if there is no file."""
    if not path.is_file():
        return {}
    found: Figures = {}
    with path.open(newline="", encoding="utf-8") as file:
        for number, line in enumerate(csv.DictReader(file), start=2):
            if line.get("metric") in TIMES:
                continue
            try:
                figure = Figure(
                    metric=line["metric"],
                    mean=float(line["mean"]),
                    std=float(line["std"]) if line["std"] else None,
                    runs=int(line["runs"]) if line["runs"] else None,
                    rounding=resolution(line["mean"]),
                )
                names = (line["task"], line["model"], line.get("optimizer") or "")
                task, model, optimizer = (parse_choice(name)[0].label if name else "" for name in names)
                found.setdefault((task, model, optimizer), []).append(figure)
            except (BadOption, KeyError, ValueError, TypeError, AttributeError) as error:
                raise StoreError(f"{path}, line {number}: cannot read a published figure ({error}).") from error
    return found


def figures_of(figures: Figures, task: str, model: str, optimizer: str) -> list[Figure]:
    """The figures of a row, given by its labels."""
    tasks, optimizers = (task, task.partition("[")[0]), (optimizer, "")
    found = (figures.get((name, model, way)) for name in tasks for way in optimizers)
    return next(filter(None, found), [])


def obstacle(study: Study, source: Study | None, task: str, optimizer: str) -> str:
    """Why a row cannot be compared with the published figures of its study; empty if it can.

    `task` and `optimizer` are full references. Without the study file, the store's own study is the measure.
    """
    source = source or study
    if not any(task == str(item) for grid in source.grids for item in grid.tasks):
        return f"the published task is not {task}"
    if not any(optimizer == str(item) for grid in source.grids for item in grid.optimizers):
        return f"the published runs were not made with {optimizer}"
    theirs = source.protocol.as_dict()
    other = [
        f"{name}={value}"
        for name, value in study.protocol.as_dict().items()
        if value != theirs[name] and name not in HARMLESS
    ]
    return f"another protocol: {', '.join(other)}" if other else ""


def compare(figure: Figure, ours: Sequence[float], lost: int, hindrance: str) -> dict[str, Any]:
    """A figure, the verdict on it, and why. `lost` trials of ours gave no value.

    Trials that gave no value may be just the ones that would have disagreed, so they stand in the way of agreement.
    """
    entry: dict[str, Any] = {"mean": figure.mean, "std": figure.std, "runs": figure.runs}
    if figure.metric == "parameters":
        same = bool(ours) and all(value == figure.mean for value in ours)
        if not ours:
            return entry | {"verdict": UNDECIDED, "why": "no model was built"}
        why = "the models are of the same size" if same else f"ours has {int(ours[0])}"
        return entry | {"verdict": EQUAL if same else DIFFERS, "why": why}
    if figure.metric.startswith(BEST_ON_TEST):
        return entry | {"verdict": NOT_COMPARABLE, "why": "the epoch was chosen on the test set"}
    if hindrance:
        return entry | {"verdict": NOT_COMPARABLE, "why": hindrance}
    if figure.metric == COLLAPSED:
        return entry | _compare_fates(bool(figure.mean), ours, lost)
    direction = "neither" if figure.metric == "epochs" else better(figure.metric)
    verdict = reproduced(figure.mean, figure.std, figure.runs, ours, figure.rounding, direction)
    text, why = verdict.text, verdict.why
    if lost and text == REPRODUCED:
        text, why = UNDECIDED, f"{lost} of our {len(ours) + lost} trials gave no value"
    return entry | {"verdict": text, "why": why, "low": verdict.low, "high": verdict.high, "margin": verdict.margin}


def _compare_fates(collapsed: bool, ours: Sequence[float], lost: int) -> dict[str, str]:
    """Whether ours collapsed as the published model did, or did not."""
    alike = sum(bool(value) == collapsed for value in ours)
    if not alike:
        return {"verdict": DIFFERS, "why": "none of ours did so"}
    if alike < len(ours) + lost:
        return {"verdict": UNDECIDED, "why": f"{alike} of our {len(ours) + lost} trials ended like the published one"}
    return {"verdict": EQUAL, "why": "all ended alike"}
