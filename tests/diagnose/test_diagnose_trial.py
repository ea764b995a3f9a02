"""Before and after training, of a new trial and of one in a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nnarena.api import make_study, run
from nnarena.core.errors import StoreError, Unfit
from nnarena.core.study import Study
from nnarena.diagnose.trial import diagnose_done, diagnose_new
from nnarena.engine.tensors import load, save
from nnarena.results.folder import MODEL, RESULT, TrialFolder


def study(model: str = "gru[hidden_size=6]", task: str = "add[length=8]", **settings) -> Study:
    usual = {"epochs": 2, "samples": 640, "batch_size": 32}
    return make_study(None, [task], [model], [], 1, False, usual | settings)


@pytest.fixture
def done(tmp_path: Path) -> TrialFolder:
    (folder,) = run(study(), out=tmp_path / "R", device="cpu", quiet=True).store.folders()
    return folder


def test_a_trained_trial_is_the_same_whether_it_comes_from_a_store_or_not(done: TrialFolder) -> None:
    (trial,) = study().trials()
    stored = diagnose_done(done)
    new = diagnose_new(trial, train=True)
    assert new == stored
    assert new["training"] == {"status": "done", "epochs": 2, "best_epoch": 2} and new["samples"] == 32
    assert new["after"]["loss"] < new["before"]["loss"]
    untrained = diagnose_new(trial)
    assert untrained["before"] == stored["before"] and untrained["after"] is None and untrained["training"] is None


def test_after_are_the_weights_that_were_saved(done: TrialFolder) -> None:
    weights, _ = load(done.path / MODEL)
    after = {item["name"]: item for item in diagnose_done(done, look=3)["after"]["parameters"]}
    for name, tensor in weights.items():
        assert after[name]["mean"] == pytest.approx(float(tensor.double().mean()))


def test_what_cannot_be_looked_at_is_told(done: TrialFolder, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="pendulum has no samples"):
        diagnose_new(study("mlp", "pendulum").trials()[0])
    weights, _ = load(done.path / MODEL)
    save(done.path / MODEL, {**weights, "head.bias": torch.zeros(7)})
    with pytest.raises(StoreError, match=r"not of gru\[hidden_size=6\] as it is now"):
        diagnose_done(done)
    (done.path / MODEL).unlink()
    result = json.loads((done.path / RESULT).read_text())
    (done.path / RESULT).write_text(json.dumps(result | {"status": "failed"}))
    with pytest.raises(StoreError, match="is failed and has no weights"):
        diagnose_done(done)
    (done.path / RESULT).unlink()
    with pytest.raises(StoreError, match="is not done yet"):
        diagnose_done(done)


def test_training_that_leaves_nothing_is_shown_as_such() -> None:
    (trial,) = study(lr=1e30).trials()
    found = diagnose_new(trial, train=True)
    assert found["training"]["status"] == "diverged" and found["after"] is None and found["before"]["loss"] > 0
