"""Members asked together: the mean of what they say, on samples that none of them learned from."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import CPU, make, run

from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.task import Task
from nnarena.engine.ensemble import mean_answer, score_together
from nnarena.engine.prepare import prepare
from nnarena.engine.step import answer
from nnarena.engine.tensors import load
from nnarena.results.folder import MODEL, TrialFolder

DIGITS = {"task": "digits", "model": "deep_mlp[hidden_size=8,layers=1]", "epochs": 2, "same_data": True}


def trained(path, **settings):
    trials = [make(**DIGITS | settings, seed=seed) for seed in range(3)]
    for trial in trials:
        run(trial, path / str(trial.seed))
    return [(trial, TrialFolder(path / str(trial.seed))) for trial in trials]


def test_probabilities_are_averaged(tmp_path):
    members = trained(tmp_path, bagging=True)
    outcome = score_together(members, CPU)
    mean, alone = 0.0, []
    for trial, folder in members:
        ready = prepare(trial, CPU)
        inputs, targets = ready.parts["test"].batch(torch.arange(len(ready.parts["test"])))
        logits = answer(ready.model.eval(), ready.task, load(folder.path / MODEL)[0], inputs).double()
        mean = mean + logits.softmax(-1) / 3
        alone.append(folder.result()["test"]["accuracy"])
    loss = -mean[torch.arange(len(targets)), targets].log().mean()
    assert outcome["members"] == 3
    assert outcome["test"]["cross_entropy"] == pytest.approx(float(loss), rel=1e-6)
    assert outcome["test"]["accuracy"] == pytest.approx(float((mean.argmax(-1) == targets).double().mean()))
    assert outcome["single"]["accuracy"] == pytest.approx(sum(alone) / 3)
    assert outcome["test"]["cross_entropy"] < outcome["single"]["cross_entropy"], "which Jensen's inequality promises"


def test_values_are_averaged():
    task = Task()
    task.spec = prepare(make(), CPU).task.spec
    said = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [0.0]])]
    assert mean_answer(task, said).tolist() == [[2.0], [1.0]]


def test_seeds_with_tests_of_their_own_are_refused(tmp_path):
    with pytest.raises(ArenaError, match=r"its seeds have other test samples each.*--set same_data=true"):
        score_together(trained(tmp_path, same_data=False), CPU)


def test_without_weights_nobody_can_be_asked(tmp_path):
    members = trained(tmp_path)
    (tmp_path / "1" / MODEL).unlink()
    with pytest.raises(StoreError, match=r"The trial 1 has no weights"):
        score_together(members, CPU)
