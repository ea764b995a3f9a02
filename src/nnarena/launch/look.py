"""A finished trial's model, brought back with the weights that validation selected, and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.files import read_json
from nnarena.core.look import Look
from nnarena.core.trial import Trial, trial_from_dict
from nnarena.engine.device import computing_with, pick_device
from nnarena.engine.look import can_be_looked_into, look
from nnarena.engine.practice import make_learner
from nnarena.engine.prepare import Ready, build_model, prepare
from nnarena.engine.tensors import load
from nnarena.results.folder import MODEL, TRIAL, TrialFolder

Answer = tuple[str, float]


def look_at_trial(folder: TrialFolder, device: str = "auto", images: int = 4, seed: int = 0) -> tuple[Trial, Look]:
    """What the model of a trial does with the test samples. Nothing is trained, and nothing in the store changes."""
    trial = _finished(folder)
    _check(trial, folder.path.name)
    target = pick_device(device)
    with computing_with(trial.protocol.threads, target):
        ready = prepare(trial, target)
        weights = _weights(folder, ready)
        return trial, look(ready, weights, trial.protocol.batch_size, images, seed)


def ask_trial(folder: TrialFolder, questions: Sequence[str], device: str = "auto") -> dict[str, list[Answer]]:
    """What the model of a trial answers to questions, such as the words nearest to a word; and how good each is."""
    trial = _finished(folder)
    if not getattr(trial.components["task"].load(), "answers", False):
        raise ArenaError(f"{trial.task.label} answers no questions (trial {folder.path.name}); tasks on words do.")
    target = pick_device(device)
    with computing_with(trial.protocol.threads, target):
        ready, learner = make_learner(trial, target, log=lambda text: None)
        try:
            weights = _weights(folder, ready)
            with torch.no_grad():
                for name, tensor in ready.state.weights().items():
                    tensor.copy_(weights[name])
            return {question: learner.ask(question) for question in questions}
        finally:
            learner.close()


def _finished(folder: TrialFolder) -> Trial:
    """The trial, if it left a model that can be brought back."""
    name = folder.path.name
    if not folder.is_done:
        raise StoreError(f"The trial {name} is not finished: there is no model to look at yet.")
    result = folder.result()
    if not (folder.path / MODEL).is_file():
        raise StoreError(f"The trial {name} has no model to look at: it is {result['status']} and left no {MODEL}.")
    record = read_json(folder.path / TRIAL)
    trial = trial_from_dict(record)
    if dict(trial.fingerprints) != (record.get("fingerprints") or {}):
        raise StoreError(f"The trial {name} was made with another version of a file of yours, which has changed since.")
    return trial


def _check(trial: Trial, name: str) -> None:
    """Raise ArenaError if there would be nothing to see: before any data are read."""
    task: Any = trial.components["task"].load()(**trial.options["task"])
    if not task.practises:
        is_image = len(task.spec.input_shape) == 3 and task.spec.target == "class"
        if is_image or can_be_looked_into(build_model(trial, task)):
            return
    more = " A model of words can be asked: --near WORD." if task.answers else ""
    raise ArenaError(
        f"There are no pictures of {trial.model.label} on {trial.task.label} (trial {name}): the task has no images "
        f"of classes, and the model no layer that can be looked into.{more}"
    )


def _weights(folder: TrialFolder, ready: Ready) -> dict[str, Tensor]:
    """The weights of the trial, which must be those of the model as it is built now."""
    path = folder.path / MODEL
    found, _ = load(path)
    wanted = ready.state.weights()
    if {key: value.shape for key, value in found.items()} != {key: value.shape for key, value in wanted.items()}:
        raise StoreError(f"{path} does not fit the model as this version builds it: other names or shapes.")
    return {key: value.to(wanted[key].device) for key, value in found.items()}
