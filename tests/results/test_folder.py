"""One trial's folder: nothing is done before it is done, and a lock dies with its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from nnarena.core.errors import StoreError
from nnarena.core.options import parse_choice
from nnarena.core.protocol import PUBLISHED
from nnarena.core.trial import make_trial
from nnarena.results.folder import CHECKPOINT, CURVE, MODEL, RESULT, TRIAL, TrialFolder, new_result

TRIAL_OF_ALL = make_trial("s", *(parse_choice(name)[0] for name in ("add", "lstm", "adam")), PUBLISHED, 0)


@pytest.fixture
def folder(tmp_path) -> TrialFolder:
    return TrialFolder(tmp_path / "trial")


def test_a_trial_is_done_when_its_result_is_there(folder):
    assert not folder.is_done
    folder.begin({"a": 1})
    (folder.path / CHECKPOINT).write_bytes(b"x")
    assert not folder.is_done
    assert json.loads((folder.path / TRIAL).read_text()) == {"a": 1, "status": "running"}
    folder.finish({"a": 1}, new_result(TRIAL_OF_ALL, exclusive=True) | {"status": "diverged"})
    assert folder.is_done and folder.result()["status"] == "diverged"
    assert json.loads((folder.path / TRIAL).read_text())["status"] == "diverged"
    assert not (folder.path / CHECKPOINT).exists()


def test_the_result_comes_last(folder, monkeypatch):
    """When writing the result fails, the checkpoint is still there and the trial is not done."""
    folder.begin({})
    (folder.path / CHECKPOINT).write_bytes(b"x")
    with pytest.raises(TypeError):
        folder.finish({}, {"status": "done", "what": object()})
    assert not folder.is_done and (folder.path / CHECKPOINT).exists()


def test_forgetting_makes_it_undone(folder):
    folder.begin({})
    for name in (RESULT, CHECKPOINT, MODEL, CURVE):
        (folder.path / name).write_text("{}")
    folder.forget()
    assert not folder.is_done and os.listdir(folder.path) == [TRIAL]
    folder.forget()


def test_a_curve_grows_line_by_line_and_has_no_nan(folder):
    assert folder.curve() == []
    folder.begin({})
    folder.append({"epoch": 1, "loss": 0.5})
    folder.append({"epoch": 2, "loss": float("nan")})
    assert folder.curve() == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": None}]


@pytest.mark.parametrize("rest", ['{"epoch": 3', '{"epoch": 3}', "{", '{"epoch": 3, "validation": {"mse": 1}', "\n"])
def test_a_last_line_cut_short_does_not_count(folder, rest):
    folder.begin({})
    folder.append({"epoch": 1})
    folder.append({"epoch": 2})
    with (folder.path / CURVE).open("a") as file:
        file.write(rest)
    assert folder.curve() == [{"epoch": 1}, {"epoch": 2}]
    assert folder.keep_epochs(5) == [{"epoch": 1}, {"epoch": 2}]
    folder.append({"epoch": 3})
    assert folder.curve() == [{"epoch": 1}, {"epoch": 2}, {"epoch": 3}]


def test_epochs_behind_the_checkpoint_are_dropped(folder):
    folder.begin({})
    for epoch in (1, 2, 3):
        folder.append({"epoch": epoch})
    assert folder.keep_epochs(2) == folder.curve() == [{"epoch": 1}, {"epoch": 2}]
    assert folder.keep_epochs(0) == folder.curve() == []


HOLD = (
    "import sys, time; from pathlib import Path; from nnarena.results.folder import TrialFolder\n"
    "with TrialFolder(Path(sys.argv[1])).locked(0): print('locked', flush=True); time.sleep(60)\n"
)


def test_a_lock_keeps_a_second_process_out_and_dies_with_the_first(folder):
    assert not folder.is_locked()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        assert folder.is_locked()
        began = time.monotonic()
        with pytest.raises(StoreError, match="Another process is working on"), folder.locked(patience=0.2):
            pass
        assert 0.2 <= time.monotonic() - began < 2
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        if holder.stdout:
            holder.stdout.close()
    with folder.locked(patience=1):
        assert folder.is_locked()
    assert not folder.is_locked()


def test_asking_whether_a_trial_runs_leaves_no_trace(tmp_path):
    folder = TrialFolder(tmp_path / "never" / "was")
    assert not folder.is_locked()
    assert not folder.path.exists()


def test_a_lock_goes_when_an_error_comes(folder):
    with pytest.raises(ValueError), folder.locked():
        raise ValueError
    assert not folder.is_locked()


def test_a_new_result_has_every_promised_field():
    result = new_result(TRIAL_OF_ALL, exclusive=False)
    promised = (
        "task model optimizer options seed status parameters epochs best_epoch seconds_total seconds_per_epoch "
        "exclusive_timing peak_memory validation test error"
    )
    assert set(promised.split()) <= result.keys()
    assert json.loads(json.dumps(result))["options"].keys() == {"task", "model", "optimizer", "protocol"}
    assert result["exclusive_timing"] is False
