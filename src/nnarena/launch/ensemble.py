"""The seeds of every competitor of a store as one ensemble, and what it gains over one of them."""

from __future__ import annotations

from typing import Any

from nnarena.core.errors import ArenaError
from nnarena.core.files import read_json, write_json
from nnarena.core.trial import Trial, trial_from_dict
from nnarena.engine.device import pick_device
from nnarena.engine.ensemble import score_together
from nnarena.results.folder import MODEL, TRIAL, TrialFolder
from nnarena.results.store import ENSEMBLES, Store

Cell = tuple[str, str, str]


def ensembles(store: Store, device: str = "auto") -> list[dict[str, Any]]:
    """Every (task, model, optimizer) with two seeds or more that are done; the store keeps it for the report.

    {"task", "model", "optimizer", "trials": [id, …], "members", "test": {metric: x}, "single": {metric: mean}}
    """
    target = pick_device(device)
    found = [
        dict(zip(("task", "model", "optimizer"), cell, strict=True))
        | {"trials": [trial.id for trial, _ in members]}
        | score_together(members, target)
        for cell, members in _cells(store).items()
        if len(members) > 1
    ]
    if not found:
        raise ArenaError(f"{store.folder} has no competitor with two seeds that are done: an ensemble needs several.")
    write_json(store.folder / ENSEMBLES, {"ensembles": found})
    return found


def _cells(store: Store) -> dict[Cell, list[tuple[Trial, TrialFolder]]]:
    """The trials of the study that are done and kept their weights, by competitor."""
    wanted = {trial.id for trial in store.study.trials()}
    cells: dict[Cell, list[tuple[Trial, TrialFolder]]] = {}
    for folder in store.folders():
        if not folder.is_done or not (folder.path / MODEL).exists() or folder.path.name not in wanted:
            continue
        if folder.result()["status"] == "done":
            trial = trial_from_dict(read_json(folder.path / TRIAL))
            cells.setdefault(trial.cell, []).append((trial, folder))
    return {cell: sorted(members, key=lambda member: member[0].seed) for cell, members in cells.items()}
