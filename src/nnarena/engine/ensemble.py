"""Several trained members asked together: the mean of what they say.

    p = 1/M Σ_m p_m        probabilities, where classes are told apart; values as they are, where values are predicted

All must be tested on the same samples, and none may have learned from them: with `same_data` all seeds share one split,
and so they do where a publisher set the test aside. Else what one is tested on another was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.task import Task
from nnarena.core.trial import Trial
from nnarena.engine.device import computing_with
from nnarena.engine.practice import practises
from nnarena.engine.prepare import Ready, prepare
from nnarena.engine.step import answer
from nnarena.engine.tensors import load
from nnarena.results.folder import MODEL, TrialFolder


@torch.no_grad()
def score_together(members: Sequence[tuple[Trial, TrialFolder]], device: torch.device) -> dict[str, Any]:
    """Test metrics of the members' mean, and the mean of those of each alone."""
    first = members[0][0]
    if practises(first):
        raise ArenaError(f"{first.task.label} has no samples that several could be asked about together.")
    said: list[Tensor] = []
    tests: list[tuple[np.ndarray, Tensor]] = []
    with computing_with(first.protocol.threads, device):
        for trial, folder in members:
            ready = prepare(trial, device)
            answers = _answers(ready, folder, trial.protocol.batch_size, device)
            tests.append((ready.split.test, ready.parts["test"].targets))
            if not (np.array_equal(tests[0][0], tests[-1][0]) and torch.equal(tests[0][1], tests[-1][1])):
                raise ArenaError(
                    f"{'/'.join(first.cell)}: its seeds have other test samples each, on which others were trained; "
                    "run it with --set same_data=true."
                )
            said.append(answers)
        task, targets = ready.task, tests[0][1]
        single = [_scores(task, answers, targets) for answers in said]
        together = _scores(task, mean_answer(task, said), targets)
    metrics = list(together)
    return {
        "members": len(members),
        "test": together,
        "single": {name: float(np.mean([scores[name] for scores in single])) for name in metrics},
    }


def mean_answer(task: Task, said: Sequence[Tensor]) -> Tensor:
    """Of classes the logarithm of the mean probabilities, which a loss reads as it reads one model's answer."""
    stacked = torch.stack([answers.double() for answers in said])
    if task.spec.target != "class":
        return stacked.mean(0)
    return stacked.log_softmax(-1).logsumexp(0) - np.log(len(said))


def _answers(ready: Ready, folder: TrialFolder, batch_size: int, device: torch.device) -> Tensor:
    try:
        weights = {name: tensor.to(device) for name, tensor in load(folder.path / MODEL)[0].items()}
    except FileNotFoundError as error:
        raise StoreError(f"The trial {folder.path.name} has no weights ({MODEL}) to be asked.") from error
    model, data = ready.model.eval(), ready.parts["test"]
    index = torch.arange(len(data), device=device)
    return torch.cat([answer(model, ready.task, weights, data.batch(part)[0]) for part in index.split(batch_size)])


def _scores(task: Task, answers: Tensor, targets: Tensor) -> dict[str, float]:
    targets = targets if task.spec.target == "class" else targets.double()
    return {name: float(value) for name, value in task.score(answers.double(), targets).items()}
