"""A study runs in this process or in workers: the same bits; what is wrong is known before anything is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from launch_helpers import GRU, LSTM, Log, bits, small, workers_of

from nnarena.core.components import lend
from nnarena.core.errors import ArenaError, StoreError, Unfit
from nnarena.core.options import parse_choices
from nnarena.core.protocol import Protocol
from nnarena.core.study import Grid, Study, dump_toml
from nnarena.launch.populations import population_limit, populations
from nnarena.launch.run import check_study, run_study
from nnarena.results.folder import MODEL, RESULT
from nnarena.results.store import Store


def test_workers_give_the_same_bits_as_this_process(tmp_path):
    study = small(LSTM, GRU, ":noisy", ":Prints", epochs=2)
    here, there = Log(), Log()
    alone = run_study(study, tmp_path / "alone", device="cpu", jobs=1, watcher=here)
    pool = run_study(study, tmp_path / "pool", device="cpu", jobs=2, watcher=there)
    assert alone.counts == pool.counts == {"done": 4} and alone.failed == 0
    assert bits(tmp_path / "alone", study) == bits(tmp_path / "pool", study)
    assert (here.jobs, there.jobs) == (1, 2) and here.ended and there.ended
    assert sorted(here.started) == sorted(there.started) == sorted(here.finished) == sorted(there.finished)
    assert workers_of(os.getpid()) == []
    assert alone.store.table()["exclusive_timing"].all() and not pool.store.table()["exclusive_timing"].any()


def test_what_is_done_is_not_done_again(tmp_path):
    run_study(small(LSTM, epochs=1), tmp_path, device="cpu")
    path = next(tmp_path.rglob(RESULT))
    before = path.stat().st_mtime_ns
    log = Log()
    outcome = run_study(small(LSTM, GRU, seeds=2, epochs=1), tmp_path, device="cpu", jobs=1, watcher=log)
    assert (log.pending, log.done, outcome.counts) == (3, 1, {"done": 4})
    assert path.stat().st_mtime_ns == before
    log = Log()
    run_study(small(LSTM, GRU, seeds=2, epochs=1), tmp_path, device="cpu", watcher=log)
    assert (log.pending, log.done) == (0, 4)


def test_a_failure_is_counted_and_the_others_finish(tmp_path):
    outcome = run_study(small(":Breaks", LSTM, ":Diverges", epochs=2), tmp_path, device="cpu", jobs=1)
    assert outcome.counts == {"failed": 1, "done": 1, "diverged": 1} and outcome.failed == 2


def test_retry_does_again_what_failed_and_nothing_else(tmp_path):
    study, log = small(":Breaks", LSTM, ":Diverges", epochs=2), Log()
    run_study(study, tmp_path, device="cpu", jobs=1)
    run_study(study, tmp_path, device="cpu", jobs=1, watcher=log)
    assert log.pending == 0
    outcome = run_study(study, tmp_path, device="cpu", jobs=1, retry=True, watcher=log)
    assert log.pending == 1 and outcome.counts == {"failed": 1, "done": 1, "diverged": 1}


@pytest.mark.parametrize(
    ("study", "error", "sentence"),
    [
        (small("lsmt"), ArenaError, "did you mean 'lstm'"),
        (small("lstm[size=3]"), ArenaError, "lstm has no option 'size'"),
        (small(LSTM, ":wrong_shape"), Unfit, "it must give"),
        (small(LSTM, "nowhere.py:Net"), ArenaError, "There is no file 'nowhere.py'"),
        (small(LSTM, samples=100), ArenaError, "100 samples are too few"),
    ],
)
def test_a_wrong_study_is_refused_before_anything_is_written(tmp_path, study, error, sentence):
    with pytest.raises(error, match=sentence):
        run_study(study, tmp_path / "store", device="cpu")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("device", "jobs"), [("abacus", 1), ("cpu", 0), ("cpu", -3)])
def test_a_wrong_device_or_number_of_jobs_is_refused_before_anything_is_written(tmp_path, device, jobs):
    with pytest.raises(ArenaError):
        run_study(small(LSTM), tmp_path / "store", device=device, jobs=jobs)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_less_precision_is_refused_on_a_cpu_before_anything_is_written(precision, tmp_path):
    with pytest.raises(ArenaError, match=f"precision={precision} needs a GPU"):
        run_study(small(LSTM, precision=precision), tmp_path / "none", device="cpu")
    assert not (tmp_path / "none").exists()


def test_every_cell_is_looked_at_once(monkeypatch):
    seen = []
    monkeypatch.setattr("nnarena.launch.run.check_fit", lambda trial: seen.append(trial.cell))
    trials = check_study(small(LSTM, GRU, seeds=3))
    assert len(trials) == 6
    assert sorted(seen) == sorted({trial.cell for trial in trials})


def test_an_object_at_hand_runs_in_this_process_only(tmp_path):
    def Net(spec):  # noqa: N802
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 1))

    ref = lend(Net)
    with pytest.raises(ArenaError, match="leave jobs at 1"):
        run_study(small(ref, LSTM), tmp_path / "two", device="cpu", jobs=2)
    log = Log()
    assert run_study(small(ref, LSTM, epochs=1), tmp_path / "one", device="cpu", watcher=log).counts == {"done": 2}
    assert log.jobs == 1


def test_two_runs_on_one_store_at_once_are_refused(tmp_path, monkeypatch):
    study = small(LSTM, epochs=1)
    store = Store.create(tmp_path, study)
    with store.running():
        from nnarena.results.folder import TrialFolder

        locked = TrialFolder.locked
        monkeypatch.setattr(TrialFolder, "locked", lambda self, patience, busy: locked(self, 0.1, busy))
        with pytest.raises(StoreError, match="Another process runs the study in"):
            run_study(study, tmp_path, device="cpu")


FULL = """
import resource, sys
from pathlib import Path
from nnarena.core.errors import StoreError
from nnarena.core.study import load_toml
from nnarena.launch.run import run_study
folder, jobs = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
try:
    run_study(load_toml((folder / "study.txt").read_text()), folder / "store", device="cpu", jobs=jobs)
except StoreError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_is_a_sentence_and_costs_nothing_that_is_finished(tmp_path, jobs):
    study = small(LSTM, "lstm[hidden_size=64]", epochs=2)  # the larger one's checkpoint does not fit
    (tmp_path / "study.txt").write_text(dump_toml(study))
    command = [sys.executable, "-c", FULL, str(tmp_path), str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("No space is left for ") and "repeat the command to go on" in done.stdout
    store = Store.open(tmp_path / "store")
    little, large = (store.trial_folder(trial) for trial in study.trials())
    assert not large.is_done and not (large.path / MODEL).exists()
    if jobs == 1:
        assert little.is_done and little.result()["status"] == "done"
    assert not [name for name in os.listdir(large.path) if name.endswith(".part")]
    assert run_study(study, tmp_path / "store", device="cpu", jobs=1).counts == {"done": 2}
    run_study(study, tmp_path / "fresh", device="cpu", jobs=1)
    assert bits(tmp_path / "store", study) == bits(tmp_path / "fresh", study)


def test_a_trial_can_be_asked_of_a_worker_by_json_alone(tmp_path):
    """What the driver sends is all a worker needs; its lines are all the driver gets."""
    study = small(LSTM, epochs=2)
    (trial,) = study.trials()
    asked = {"trial": trial.as_dict(), "id": trial.id, "folder": str(tmp_path / "trial")}
    request = {"trials": [asked], "device": "cpu"}
    wrong = {"trials": [asked | {"id": "0" * 12}], "device": "cpu"}
    lines = "".join(json.dumps(item) + "\n" for item in (wrong, request))
    worker = subprocess.Popen(
        [sys.executable, "-m", "nnarena.launch.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None and worker.stdout is not None
    with worker.stdin, worker.stdout:
        worker.stdin.write(lines)
        worker.stdin.flush()
        events = [json.loads(worker.stdout.readline()) for _ in range(5)]
        worker.stdin.close()
        assert worker.wait(timeout=20) == 0, "without its driver a worker ends"
    assert [event["event"] for event in events] == ["refused", "start", "epoch", "epoch", "finish"]
    assert "changed while the study ran" in events[0]["text"]
    assert {event["id"] for event in events[1:]} == {trial.id}
    assert events[-1]["result"]["status"] == "done"


# ---------------------------------------------------------------------------------------------- populations


def curves(folder, study):
    store = Store.open(folder)
    return {trial.seed: store.trial_folder(trial).curve() for trial in study.trials()}


def test_the_seeds_of_a_cell_are_trained_as_one(tmp_path):
    study, log, epochs = small(":Small", seeds=3, epochs=2), Log(), []
    log.on_epoch = lambda trial, line: epochs.append((line["epoch"], trial.seed))
    outcome = run_study(study, tmp_path / "one", device="cpu", jobs=1, population=8, watcher=log)
    assert outcome.counts == {"done": 3} and log.jobs == 3 and len(log.started) == 3
    assert epochs == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)], "they run side by side"
    assert not outcome.store.table()["exclusive_timing"].any()
    run_study(study, tmp_path / "each", device="cpu", jobs=1)
    ours, theirs = curves(tmp_path / "one", study), curves(tmp_path / "each", study)
    for seed in range(3):
        assert [line.get("population") for line in ours[seed]] == [3, 3]
        assert not any("population" in line for line in theirs[seed]), "on the CPU one at a time if nobody asks"
        losses = [[line["loss"] for line in lines[seed]] for lines in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_population_of_a_study_goes_on_where_single_trials_stopped(tmp_path):
    def stop(trial, line):
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    study = small(":Small", seeds=3)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, device="cpu", jobs=1, watcher=Log(stop))
    assert run_study(study, tmp_path, device="cpu", jobs=1, population=3).counts == {"done": 3}
    first = curves(tmp_path, study)[0]
    assert ["population" in line for line in first] == [False, False, True, True]


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1] * 6), (2, [2, 1, 2, 1]), (3, [3, 3]), (None, [3, 3])])
def test_groups_are_of_one_cell_and_not_too_large(limit, sizes):
    trials = small(LSTM, GRU, seeds=3).trials()
    groups = populations(trials, limit)
    assert [len(group) for group in groups] == sizes
    assert all(len({trial.cell for trial in group}) == 1 for group in groups)
    assert {trial.id for group in groups for trial in group} == {trial.id for trial in trials}


def test_learning_rates_may_differ_in_a_group_and_nothing_else():
    grid = Grid(*map(tuple, map(parse_choices, (["add[length=4]"], [LSTM], ["adam[lr=[0.1,0.01]]", "sgd"]))))
    study = Study("tests", (grid,), seeds=2, protocol=Protocol.of({"samples": 320, "batch_size": 16}))
    assert sorted(len(group) for group in populations(study.trials(), None)) == [2, 4]


def test_a_gpu_trains_all_and_a_cpu_one_if_nobody_asks():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert (population_limit(None, cpu), population_limit(None, gpu)) == (1, None)
    assert (population_limit(4, cpu), population_limit(4, gpu)) == (4, 4)


def test_a_population_of_none_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ArenaError, match="--population must be at least 1"):
        run_study(small(LSTM), tmp_path / "store", device="cpu", population=0)
    assert not (tmp_path / "store").exists()
