"""Workers and drivers that die: nothing is lost, nothing hangs, nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launch_helpers import LSTM, SLOW, Log, alive, bits, small, wait_for, workers_of

from nnarena.core.study import dump_toml
from nnarena.launch.run import run_study
from nnarena.launch.workers import run_in_workers
from nnarena.results.folder import CURVE, RESULT
from nnarena.results.store import Store

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


def run_quickly(study, folder):
    """In this process, where slow models need not be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN_NETS_HURRY", "1")
        assert run_study(study, folder, device="cpu", jobs=1).failed == 0
    return bits(folder, study)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The bits of a study that nothing disturbs."""
    study = small(SLOW, LSTM, epochs=3)
    return study, run_quickly(study, tmp_path_factory.mktemp("reference"))


def test_a_killed_worker_is_replaced_and_the_bits_are_the_same(tmp_path, reference):
    study, expected = reference
    killed = []

    def kill_once(trial, line):
        if trial.model.name == "Sleeps" and line["epoch"] == 1 and not killed:
            killed.extend(workers_of(os.getpid()))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    log = Log(kill_once)
    outcome = run_study(study, tmp_path, device="cpu", jobs=2, watcher=log)
    assert killed and outcome.counts == {"done": 2}
    assert any("A worker died (signal 9)" in line and "continues in a new one" in line for line in log.lines)
    assert bits(tmp_path, study) == expected
    assert workers_of(os.getpid()) == []


def test_a_model_that_kills_its_process_is_a_failed_row_and_the_others_finish(tmp_path):
    log = Log()
    study = small(":Kills", LSTM, seeds=1, epochs=2)
    outcome = run_study(study, tmp_path, device="cpu", jobs=2, watcher=log)
    assert outcome.counts == {"failed": 1, "done": 1}
    assert log.started.count("Kills") == 3
    result = log.finished["Kills"]
    assert (result["status"], result["epochs"]) == ("failed", 1)
    assert "it cost 3 workers (signal 9)" in result["error"]
    (row,) = outcome.store.table().filter(status="failed").iter_rows(named=True)
    assert row["error"] == result["error"]
    assert workers_of(os.getpid()) == []


def test_a_worker_that_dies_costs_each_of_its_trials_one_life_and_the_guilty_one_alone_fails(tmp_path):
    """Seed 1 kills whatever process it runs in; the others were in its company only once."""
    log = Log()
    study = small(":KillsSeed", seeds=3, epochs=2)
    outcome = run_study(study, tmp_path, device="cpu", jobs=2, population=2, watcher=log)
    statuses = {trial.seed: outcome.store.trial_folder(trial).result()["status"] for trial in study.trials()}
    assert statuses == {0: "done", 1: "failed", 2: "done"}
    assert any("A worker died (signal 9); 2 × " in line and "continue apart" in line for line in log.lines)
    assert any("continues in a new one" in line for line in log.lines)
    assert workers_of(os.getpid()) == []


def test_workers_train_populations(tmp_path):
    study, log = small(":Small", seeds=4, epochs=2), Log()
    outcome = run_study(study, tmp_path, device="cpu", jobs=2, population=2, watcher=log)
    assert outcome.counts == {"done": 4} and log.jobs == 4 and len(log.started) == 4
    for trial in study.trials():
        lines = outcome.store.trial_folder(trial).curve()
        assert [line["population"] for line in lines] == [2, 2]


def test_ctrl_c_takes_the_workers_along_and_repeating_goes_on(tmp_path, reference):
    study, expected = reference

    def interrupt(trial, line):
        if trial.model.name == "Sleeps":
            raise KeyboardInterrupt

    log = Log(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, device="cpu", jobs=2, watcher=log)
    assert workers_of(os.getpid()) == [] and log.ended
    assert run_quickly(study, tmp_path) == expected


DRIVER = """
import sys
from pathlib import Path
from nnarena.core.study import load_toml
from nnarena.launch.run import run_study
folder = Path(sys.argv[1])
run_study(load_toml((folder / "study.txt").read_text()), folder / "store", device="cpu", jobs=2)
"""


def test_a_killed_driver_leaves_no_worker_behind_and_repeating_gives_the_same_bits(tmp_path):
    study = small(":Sleeps[seconds=0.1]", ":Sleeps[seconds=0.11]", epochs=3)
    (tmp_path / "study.txt").write_text(dump_toml(study))
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)])
    try:
        wait_for(lambda: len(list((tmp_path / "store").rglob(CURVE))) == 2)
        workers = workers_of(driver.pid)
        assert len(workers) == 2
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: not any(map(alive, workers)), seconds=5)
    assert not list((tmp_path / "store").rglob(RESULT)), "a trial that was cut off is not done"
    assert run_quickly(study, tmp_path / "store") == run_quickly(study, tmp_path / "fresh")


def test_half_a_line_from_a_dying_worker_does_not_hang_the_driver(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nprintf \'{"event": "ep\'\n')
    program.chmod(0o755)
    study = small(LSTM)
    store, log = Store.create(tmp_path / "store", study), Log()
    monkeypatch.setattr(sys, "executable", str(program))
    thread = threading.Thread(target=run_in_workers, args=(store, [study.trials()], "cpu", 1, log), daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive(), "the driver waits for ever"
    assert log.finished["lstm"]["status"] == "failed"
