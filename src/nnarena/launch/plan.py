"""What a study would do and cost, without doing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnarena.core.errors import DataError
from nnarena.core.study import Study
from nnarena.core.trial import Trial
from nnarena.engine.device import pick_device
from nnarena.engine.fit import check_data, check_fit, seconds_per_epoch
from nnarena.launch.populations import population_limit, populations
from nnarena.launch.run import count_jobs
from nnarena.launch.sharing import find_mps
from nnarena.results.folder import TrialFolder
from nnarena.results.start import settle
from nnarena.results.store import TRIALS


def make_plan(
    study: Study,
    folder: Path,
    device: str,
    jobs: int | None,
    population: int | None = None,
    measuring: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Every cell of the study with its parameters, what is done of it, and the most it can still cost.

    The cost of an epoch is that of finished trials of the cell where there are some, else it is measured: a few
    steps on blank data, times the steps of an epoch, validation included. It is that of a population, which is paid
    once for all of its trials.
    """
    target = pick_device(device)
    study = settle(study, folder)
    every = study.trials()
    pending = [trial for trial in every if not TrialFolder(folder / TRIALS / trial.path).is_done]
    groups = populations(pending, population_limit(population, target))
    company = {trial.id: group for group in groups for trial in group}
    by_cell: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in every:
        by_cell.setdefault(trial.cell, []).append(trial)
    cells, obstacles = [], {}
    for (task, model, optimizer), trials in by_cell.items():
        measuring(f"{model} on {task}")
        parameters = check_fit(trials[0])
        try:
            check_data(trials[0])
        except DataError as error:
            obstacles[str(error)] = None
        left = [company[trial.id] for trial in trials if trial.id in company]
        finished = [TrialFolder(folder / TRIALS / trial.path) for trial in trials if trial.id not in company]
        epochs = [kept.result()["seconds_per_epoch"] for kept in finished]
        seconds = [value for value in epochs if value]
        together = left[0] if left else trials[:1]
        each = sum(seconds) / len(seconds) if seconds else seconds_per_epoch(together, target)
        cells.append(
            {
                "task": task,
                "model": model,
                "optimizer": optimizer,
                "parameters": parameters,
                "trials": len(trials),
                "done": len(finished),
                "seconds_per_epoch": each,
                "seconds_left": each * study.protocol.epochs * sum(1 / len(group) for group in left),
            }
        )
    at_once = count_jobs(jobs, target, groups)
    takes_turns = target.type == "cuda" and find_mps() is None
    return {
        "study": study.name,
        "folder": str(folder),
        "device": str(target),
        "jobs": at_once,
        "trials": sum(cell["trials"] for cell in cells),
        "done": sum(cell["done"] for cell in cells),
        "seconds_left": sum(cell["seconds_left"] for cell in cells) / (1 if takes_turns else at_once),
        "missing": list(study.missing),
        "obstacles": list(obstacles),
        "cells": cells,
    }
