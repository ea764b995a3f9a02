"""Processes that share a GPU: a private daemon that is started and stopped for real, by a script that stands for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from launch_helpers import GRU, LSTM, SLOW, Log, alive, small, wait_for, workers_of

from nnarena.launch import run, sharing, worker
from nnarena.launch.run import count_jobs, run_study
from nnarena.launch.workers import run_in_workers
from nnarena.results.folder import RESULT
from nnarena.results.store import Store

CUDA, CPU = torch.device("cuda"), torch.device("cpu")

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")

FAKE = """#!/bin/sh
# Stands for NVIDIA's program: with -d a daemon (a long sleep), which answers at its pipes until it is told to quit.
pipes=${{CUDA_MPS_PIPE_DIRECTORY:-{home}/usual}}
if [ "$1" = -d ]; then
    echo "-d logs=$CUDA_MPS_LOG_DIRECTORY visible=$CUDA_VISIBLE_DEVICES" >> {home}/calls
    if [ -e {home}/broken ]; then echo; echo "An instance of this daemon is already running"; exit 1; fi
    sleep 600 & echo $! | tee $pipes/pid > {home}/daemon
    exit 0
fi
while read -r command; do
    case "$command" in
        quit*) echo "$command" >> {home}/calls; kill $(cat $pipes/pid);;
        get_default*) if [ -e $pipes/pid ]; then echo 100.0; else echo Cannot find MPS control daemon process; fi;;
    esac
done
"""


class Mps:
    """What the script was asked, and the daemon that it started."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def calls(self) -> list[str]:
        return (self.home / "calls").read_text().splitlines() if (self.home / "calls").exists() else []

    @property
    def daemon(self) -> int:
        return int((self.home / "daemon").read_text())


@pytest.fixture
def mps(tmp_path, monkeypatch):
    home = tmp_path / "mps"
    (home / "usual").mkdir(parents=True)
    program = home / sharing.CONTROL
    program.write_text(FAKE.format(home=home))
    program.chmod(0o755)
    for name in (sharing.PIPES, sharing.LOGS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setattr(sharing, "CLIENT", "")
    yield Mps(home)
    if (home / "daemon").exists() and alive(Mps(home).daemon):
        os.kill(Mps(home).daemon, signal.SIGKILL)


def folder_of(variables):
    return Path(variables[sharing.PIPES]).parent


def assert_gone(mps, variables):
    assert not folder_of(variables).exists()
    wait_for(lambda: not alive(mps.daemon), seconds=5)
    assert [call.split()[0] for call in mps.calls] == ["-d", "quit"]


def test_a_private_daemon_runs_as_long_as_it_is_needed(mps):
    logs: list[str] = []
    with sharing.sharing(CUDA, 2, logs.append) as variables:
        assert variables is not None and alive(mps.daemon)
        assert mps.calls == [f"-d logs={variables[sharing.LOGS]} visible="], "the daemon sees all devices"
        assert sharing.PIPES not in os.environ, "the variables are for the children alone"
        assert len(f"{variables[sharing.PIPES]}/control") < 60, "a socket's name is short"
    assert_gone(mps, variables)
    assert not logs


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_it_is_stopped_whatever_happens(mps, error):
    kept = {}
    with pytest.raises(error), sharing.sharing(CUDA, 2, print) as variables:
        kept |= variables or {}
        raise error
    assert_gone(mps, kept)


HOLDER = """
import sys, time, torch
from nnarena.launch import sharing
sharing.CLIENT = ""
with sharing.sharing(torch.device("cuda"), 2, print) as variables:
    print(variables[sharing.PIPES], flush=True)
    time.sleep(60)
"""


def test_it_ends_when_our_process_is_killed(mps):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        variables = {sharing.PIPES: holder.stdout.readline().strip()}
        assert alive(mps.daemon)
        holder.kill()
        holder.wait()
    wait_for(lambda: not folder_of(variables).exists(), seconds=5)
    assert_gone(mps, variables)


@pytest.mark.parametrize(("device", "processes"), [(CPU, 4), (CUDA, 1)])
def test_nothing_is_started_where_nothing_is_shared(mps, device, processes):
    with sharing.sharing(device, processes, print) as variables:
        assert variables == {} and not mps.calls


@pytest.mark.parametrize("where", ["said", "usual"])
def test_a_persons_own_daemon_is_used_as_it_is(mps, monkeypatch, where):
    if where == "said":
        monkeypatch.setenv(sharing.PIPES, "/somewhere")
    else:
        (mps.home / "usual" / "pid").write_text("1")
    with sharing.sharing(CUDA, 4, print) as variables:
        assert variables == {}
    assert not mps.calls
    assert (sharing.find_mps() or "").startswith("your daemon in ")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("broken", "nvidia-cuda-mps-control: An instance of this daemon is already running"),
        ("refused", "CUDA error 805"),
        ("slow", "takes longer than 0.2 seconds"),
        ("absent", "there is no nvidia-cuda-mps-control on the PATH"),
    ],
)
def test_without_a_daemon_they_take_turns_and_a_line_says_why(mps, monkeypatch, trouble, reason):
    folders, logs, make = [], [], tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **where: folders.append(make(**where)) or folders[-1])
    if trouble == "broken":
        (mps.home / "broken").touch()
    if trouble == "refused":
        monkeypatch.setattr(sharing, "CLIENT", "import sys; sys.exit('CUDA error 805')")
    if trouble == "slow":
        monkeypatch.setattr(sharing, "PATIENCE", 0.2)
        monkeypatch.setattr(sharing, "CLIENT", "import time; time.sleep(60)")
    if trouble == "absent":
        (mps.home / sharing.CONTROL).unlink()
        assert sharing.find_mps() is None
    with sharing.sharing(CUDA, 2, logs.append) as variables:
        assert variables is None
    assert not any(map(os.path.exists, folders)) and len(folders) == (trouble != "absent")
    assert len(logs) == 1 and logs[0].startswith("Processes take turns on the GPU") and logs[0].endswith(reason)
    if trouble in ("refused", "slow"):
        wait_for(lambda: not alive(mps.daemon), seconds=5)


# ---------------------------------------------------------------------------------------------- how many at once


@pytest.mark.parametrize(
    ("device", "asked", "cells", "cores", "there", "count"),
    [
        ("cuda", None, 9, 16, True, 4),
        ("cuda", None, 9, 16, False, 1),
        ("cuda", None, 3, 16, True, 3),
        ("cuda", None, 9, 5, True, 2),
        ("cuda", None, 9, 1, True, 1),
        ("cuda", 7, 9, 2, False, 7),
        ("cuda", 7, 5, 2, True, 5),
        ("cuda", None, 0, 16, True, 1),
        ("cpu", None, 9, 6, False, 6),
        ("cpu", 2, 9, 6, True, 2),
    ],
)
def test_how_many_run_at_once(monkeypatch, device, asked, cells, cores, there, count):
    monkeypatch.setattr(run, "cores", lambda: cores)
    monkeypatch.setattr(run, "find_mps", lambda: "a daemon" if there else None)
    trials = small(LSTM, seeds=3).trials()
    assert count_jobs(asked, torch.device(device), [trials] * cells) == count
    assert count_jobs(asked, torch.device(device), [trials] * cells, shared=there) == count


@pytest.fixture
def pretended(monkeypatch):
    """A GPU as far as a driver sees one, on a machine of 16 cores. What it asks of workers is kept, and not done."""
    asked = []
    monkeypatch.setattr(run, "pick_device", lambda name: torch.device(name))
    monkeypatch.setattr(run, "cores", lambda: 16)
    monkeypatch.setattr(run, "run_in_workers", lambda *given: asked.append(given[1:]))
    monkeypatch.setattr(run, "_run_here", lambda store, groups, *given: asked.append((groups, "here")))
    return asked


def test_a_study_on_a_gpu_runs_under_the_daemon(mps, pretended, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(run, "run_in_workers", lambda *given: seen.append((*given[1:], alive(mps.daemon))))
    run_study(small(LSTM, GRU, ":Small", seeds=2), tmp_path / "store", device="cuda", watcher=Log())
    ((groups, device, count, _, variables, living),) = seen
    assert ([len(group) for group in groups], device, count, living) == ([2, 2, 2], "cuda", 3, True)
    assert_gone(mps, variables)


def test_ctrl_c_in_a_study_stops_the_daemon(mps, pretended, monkeypatch, tmp_path):
    def interrupt(*given):
        pretended.append(given[-1])
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_in_workers", interrupt)
    log = Log()
    with pytest.raises(KeyboardInterrupt):
        run_study(small(LSTM, GRU), tmp_path / "store", device="cuda", watcher=log)
    assert log.ended
    assert_gone(mps, pretended[0])


@pytest.mark.parametrize(("jobs", "ways"), [(None, "here"), (2, {})])
def test_a_daemon_that_does_not_start_costs_the_company_and_not_the_study(mps, pretended, tmp_path, jobs, ways):
    (mps.home / "broken").touch()
    log = Log()
    run_study(small(LSTM, GRU), tmp_path / "store", device="cuda", jobs=jobs, watcher=log)
    ((*_, way),) = pretended
    assert way == ways, "nobody asked for processes that take turns, or somebody did"
    assert len(log.lines) == 1 and "take turns" in log.lines[0]


# ---------------------------------------------------------------------------------------------- workers


def variable_of(pid: int) -> str | None:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next((entry.partition("=")[2] for entry in entries if entry.startswith(f"{sharing.PIPES}=")), None)


def test_workers_get_the_variables_and_one_in_a_dead_ones_place_does_not(tmp_path, monkeypatch):
    monkeypatch.delenv(sharing.PIPES, raising=False)
    study, found = small(SLOW, epochs=2), []

    def look_and_kill_the_first(trial):
        (pid,) = workers_of(os.getpid())
        found.append(variable_of(pid))
        if len(found) == 1:
            os.kill(pid, signal.SIGKILL)

    store, log = Store.create(tmp_path / "store", study), Log()
    log.start = look_and_kill_the_first
    run_in_workers(store, [study.trials()], "cpu", 1, log, {sharing.PIPES: "/pipes"})
    assert found == ["/pipes", None]
    assert log.lines[0].endswith("continues in a new one, without MPS.")


def test_a_worker_whose_device_is_lost_ends_without_a_row(tmp_path, monkeypatch):
    (trial,) = small(":Breaks").trials()
    asked = {"trial": trial.as_dict(), "id": trial.id, "folder": str(tmp_path / "trial")}
    said = []
    monkeypatch.setattr("nnarena.engine.members.is_lost", lambda device: True)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        worker._work({"trials": [asked], "device": "cpu"}, lambda event, **content: said.append((event, content)))
    assert ended.value.code == 1 and not (tmp_path / "trial" / RESULT).exists()
    assert said[-1][0] == "log" and "the device answers no more" in said[-1][1]["text"]


def test_a_worker_takes_cell_after_cell(tmp_path):
    pids = set()
    log = Log(lambda trial, line: pids.update(workers_of(os.getpid())))
    study = small(LSTM, GRU, ":Small", epochs=1)
    store = Store.create(tmp_path / "store", study)
    run_in_workers(store, [[trial] for trial in study.trials()], "cpu", 1, log)
    assert len(log.finished) == 3 and len(pids) == 1
