"""A finished trial once more: what came out differently, and what may explain it."""

from __future__ import annotations

import json

import pytest
from launch_helpers import small

from nnarena.launch.rerun import rerun_trial
from nnarena.launch.run import run_study
from nnarena.launch.watch import Watcher
from nnarena.results.folder import CURVE


def again(study, folder, population):
    outcome = run_study(study, folder, device="cpu", jobs=1, population=population)
    kept = outcome.store.trial_folder(study.trials()[0])
    return kept, lambda: rerun_trial(outcome.store, kept, "cpu", Watcher())


def test_a_trial_alone_comes_out_the_same(tmp_path):
    _, rerun = again(small(":Small", seeds=2, epochs=2), tmp_path, None)
    assert rerun() == {"trial": rerun()["trial"], "same": True, "differences": []}


@pytest.mark.parametrize("change", [0.0, 1e-3])
def test_company_is_an_explanation_and_not_a_difference(change, tmp_path):
    kept, rerun = again(small(":Small", seeds=3, epochs=2), tmp_path, 3)
    lines = kept.curve()
    lines[1]["loss"] += change
    (kept.path / CURVE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = rerun()
    assert comparison["same"] == (comparison["differences"] == [])
    if change:
        assert comparison["differences"][0] == "made with 3 trials as one, now alone"
        assert any(line.startswith("curve: epoch") for line in comparison["differences"])
