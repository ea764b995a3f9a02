"""A trial's model before and after its training, on the same samples."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nnarena.core.errors import ArenaError, StoreError, Unfit
from nnarena.core.files import read_json
from nnarena.core.task import Task
from nnarena.core.trial import Trial, trial_from_dict
from nnarena.diagnose.measure import Inputs, measure
from nnarena.engine.device import computing_with
from nnarena.engine.fit import check_data, check_fit
from nnarena.engine.practice import practises
from nnarena.engine.prepare import build_model, prepare
from nnarena.engine.tensors import load
from nnarena.engine.trial import run_trial
from nnarena.results.folder import MODEL, TRIAL, TrialFolder

CPU = torch.device("cpu")
LOOK = 32  # samples that are looked at
Epoch = Callable[[dict[str, Any]], None]
Log = Callable[[str], None]


def fitting(trials: Sequence[Trial]) -> Trial:
    """The first trial whose model fits its task; if none does, why not the first of all."""
    for trial in trials:
        with suppress(Unfit):
            check_fit(trial)
            return trial
    check_fit(trials[0])
    return trials[0]


def diagnose_new(
    trial: Trial,
    *,
    train: bool = False,
    look: int = LOOK,
    device: torch.device = CPU,
    on_epoch: Epoch = lambda line: None,
    log: Log = print,
) -> dict[str, Any]:
    """The model of a trial that is in no store: before training, and after it if asked for.

    It is trained as any trial is, by the protocol, in a folder that is gone afterwards.
    """
    _check(trial, look)
    if not train:
        return _diagnosis(trial, None, None, look)
    with tempfile.TemporaryDirectory(prefix="nnarena-diagnose-") as temporary:
        folder = TrialFolder(Path(temporary) / trial.id)
        result = run_trial(trial, folder, device, on_epoch=on_epoch, log=log)
        return _diagnosis(trial, result, _weights(folder), look)


def diagnose_done(folder: TrialFolder, *, look: int = LOOK) -> dict[str, Any]:
    """A trial of a store: before is what its seed gives, after is what it saved."""
    if not folder.is_done:
        raise StoreError(f"The trial {folder.path.name} is not done yet: `nnarena run` goes on with it.")
    trial, result, weights = trial_from_dict(read_json(folder.path / TRIAL)), folder.result(), _weights(folder)
    if weights is None:
        raise StoreError(f"The trial {folder.path.name} is {result['status']} and has no weights to look at.")
    _check(trial, look)
    return _diagnosis(trial, result, weights, look)


def _check(trial: Trial, look: int) -> None:
    """What can be told before any work: does it fit, are there data, is there a loss of samples?"""
    if look < 1:
        raise ArenaError(f"At least one sample must be looked at, not {look}.")
    if practises(trial):
        raise Unfit(f"{trial.task.label} has no samples: its model learns from what it does. Take another task.")
    check_fit(trial)
    check_data(trial)


def _weights(folder: TrialFolder) -> dict[str, Tensor] | None:
    path = folder.path / MODEL
    return load(path)[0] if path.exists() else None


def _diagnosis(
    trial: Trial, result: dict[str, Any] | None, weights: dict[str, Tensor] | None, look: int
) -> dict[str, Any]:
    with computing_with(trial.protocol.threads, CPU):
        task, inputs, targets = _samples(trial, look)
        start = build_model(trial, task)
        after = (
            None if weights is None else measure(_with(build_model(trial, task), weights, trial), task, inputs, targets)
        )
        return {
            "model": trial.model.label,
            "task": trial.task.label,
            "optimizer": trial.optimizer.label,
            "study": trial.study,
            "seed": trial.seed,
            "samples": len(targets),
            "losses": "tokens" if task.spec.target == "tokens" else "steps" if task.spec.per_step else "last",
            "training": None if result is None else {key: result[key] for key in ("status", "epochs", "best_epoch")},
            "before": measure(start, task, inputs, targets),
            "after": after,
        }


def _samples(trial: Trial, look: int) -> tuple[Task, Inputs, Tensor]:
    """Samples that the trial is trained with: the first of its split, which is in random order."""
    ready = prepare(trial, CPU)
    data = ready.parts["train"]
    inputs, targets = data.batch(torch.arange(min(look, len(data))))
    return ready.task, inputs, targets


def _with(model: nn.Module, weights: dict[str, Tensor], trial: Trial) -> nn.Module:
    """The model with these weights in place of its start values."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        raise StoreError(f"The saved weights are not of {trial.model.label} as it is now: its code has changed.")
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
    return model
