"""Stores in the true format, filled with invented results, made through the same calls as real ones."""

from __future__ import annotations

import math
import random
from typing import Any

from nnarena.core.options import parse_choices
from nnarena.core.study import Grid, Study
from nnarena.core.trial import Trial
from nnarena.results.store import Store

WICKED = "RuntimeError: </script><b>out & 'away'</b> [/] $ _ 100%"


def make_study(tasks: list[str], models: list[str], optimizers: list[str], **more: Any) -> Study:
    grid = Grid(*(tuple(parse_choices(names)) for names in (tasks, models, optimizers)))
    return Study(name=more.pop("name", "mine"), grids=(grid,), **more)


def trials(study: Study) -> list[Trial]:
    """The study's trials, without looking the components up: these tests need none of them to exist."""
    return [
        Trial(study.name, task, model, optimizer, study.protocol, seed, options={"task": {}, "model": {}})
        for grid in study.grids
        for task in grid.tasks
        for model in grid.models
        for optimizer in grid.optimizers
        for seed in range(study.seeds)
    ]


def write(store: Store, trial: Trial, steps: int = 0, **result: Any) -> str:
    """Write a trial's curve and its result, plausible where nothing is given; returns its id.

    With `steps` an epoch it is an agent, which learns from what it does.
    """
    folder = store.trial_folder(trial)
    classes = trial.task.name in ("digits", "memory")
    base = {"mse": 0.17} if not classes else {"cross_entropy": 2.303, "accuracy": 0.1}
    test = {"mse": 0.02} if not classes else {"cross_entropy": 0.2, "accuracy": 0.93}
    if steps:
        base, test = ({"cost": value, "return": -value} for value in (1200.0, 150.0))
        result = {"training": {"reward_per_step": -0.8}, "baselines": {"random actions": base}} | result
    test = result.get("test", test)
    task, model, optimizer = trial.cell
    whole = {
        "task": task,
        "model": model,
        "optimizer": optimizer,
        "options": {kind: dict(options) for kind, options in trial.options.items()},
        "seed": trial.seed,
        "status": "done",
        "parameters": 20241,
        "epochs": 12,
        "best_epoch": 9,
        "seconds_total": 12.0,
        "seconds_per_epoch": 1.0,
        "exclusive_timing": True,
        "peak_memory": 1000,
        "validation": test,
        "test": test,
        "baselines": {"majority class" if classes else "mean": base},
        "device": "cpu",
        "error": None,
    } | result
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.begin(trial.as_dict())
    dice = random.Random(f"{trial.id}")
    for epoch in range(1, (whole["epochs"] or 0) + 1):
        fall = math.exp(-epoch / 4) * (1 + 0.1 * dice.random())
        validation = {name: 1 - fall if name == "accuracy" else fall for name in base}
        bad = whole["status"] == "diverged" and epoch == whole["epochs"]
        line = {
            "epoch": epoch,
            "loss": math.nan if bad else fall,
            "validation": validation,
            "lr": 1e-3 if epoch < 8 else 1e-4,
            "seconds": whole["seconds_per_epoch"] or 1.0,
        }
        if steps:
            line |= {"steps": steps * epoch, "training": {"reward_per_step": -fall}}
            line["validation"] = {"cost": 1000 * fall, "return": -1000 * fall}
        folder.append(line)
    folder.finish(trial.as_dict(), whole)
    return trial.id
