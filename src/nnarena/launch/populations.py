"""Which trials are trained as one: those of a cell, which differ in nothing but seed and learning rate."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from nnarena.core.errors import ArenaError
from nnarena.core.trial import KINDS, Trial
from nnarena.engine.practice import practises


def population_limit(asked: int | None, device: torch.device) -> int | None:
    """How many at most: as asked, else all on a GPU (None), and one on the CPU, where its bits are then its own."""
    if asked is not None and asked < 1:
        raise ArenaError(f"--population must be at least 1, not {asked}.")
    return asked or (1 if device.type == "cpu" else None)


def populations(trials: Sequence[Trial], limit: int | None) -> list[list[Trial]]:
    """The trials in groups of at most `limit`, a kind after another in the order in which they come first.

    Models that learn from what they do are never trained as one.
    """
    if limit == 1:
        return [[trial] for trial in trials]
    kinds: dict[str, list[Trial]] = {}
    for trial in trials:
        kinds.setdefault(kind_of(trial), []).append(trial)
    groups = []
    for alike in kinds.values():
        size = 1 if practises(alike[0]) else limit or len(alike)
        groups += [alike[start : start + size] for start in range(0, len(alike), size)]
    return groups


def kind_of(trial: Trial) -> str:
    """All that determines a trial but its seed and its learning rate."""
    request = trial.as_dict() | {kind: getattr(trial, kind).ref for kind in KINDS}
    del request["seed"]
    request["protocol"].pop("lr", None)
    request["options"]["optimizer"].pop("lr", None)
    return json.dumps(request, sort_keys=True)
