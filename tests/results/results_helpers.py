"""Stores with invented results."""

from __future__ import annotations

from typing import Any

from nnarena.core.options import parse_choices
from nnarena.core.study import Grid, Study
from nnarena.core.trial import Trial
from nnarena.results.folder import new_result
from nnarena.results.store import Store


def study(tasks="add", models="lstm,gru", name="mine", **more: Any) -> Study:
    optimizers = more.pop("optimizers", "adam")
    return Study(name, (Grid(*(tuple(parse_choices([n])) for n in (tasks, models, optimizers))),), **more)


def finish(store: Store, trial: Trial, **result: Any) -> None:
    folder = store.trial_folder(trial)
    whole = new_result(trial, exclusive=True) | {"test": {"mse": 0.5}, "validation": {"mse": 0.25}} | result
    folder.finish(trial.as_dict(), whole)
