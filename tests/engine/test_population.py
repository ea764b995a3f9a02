"""Trials as one stacked model come out as they do alone, whoever stops, diverges or runs out of memory."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest
import torch
from engine_helpers import CPU, Stop, assert_same, bits, curve, make, run, run_together

from nnarena.engine import members
from nnarena.engine import trial as engine
from nnarena.engine.members import DeviceLost, Member
from nnarena.engine.stack import Stacked
from nnarena.results.folder import CHECKPOINT, CURVE, RESULT, TrialFolder

OPTIMIZERS = [
    "adam",
    "sgd[momentum=0.9]",
    "adamw[amsgrad=true,weight_decay=0.1]",
    "nadam",
    "rmsprop[momentum=0.5,centered=true]",
    "adagrad[lr_decay=0.1]",
    "adadelta",
    "orthadam[weight_decay=0.1]",
    "orthadam[threshold=constant,delta=0.5,view=channel,amsgrad=true]",
    "orthadam[threshold=constant,eps_place=outside,decay=released,project=all]",
    "adamp[weight_decay=0.1,delta=0.5]",
    "sgdp[momentum=0.9,weight_decay=0.1,delta=0.5]",
]
# Plateaus and ends that depend on the seed: a little progress does not count.
RESTLESS = {"epochs": 12, "stop_patience": 3, "plateau_patience": 1, "min_delta": 0.002}


def seeds(count=3, model=":Small", **more):
    return [make(model, seed=seed, **more) for seed in range(count)]


def alone(trials, path):
    return [run(trial, path / str(place)) for place, trial in enumerate(trials)]


def compare(trials, one, other):
    for place in range(len(trials)):
        assert_same(one / str(place), other / str(place))


def stacked(path, count):
    """Whether the first epoch of a trial was trained with this many."""
    return json.loads((path / "0" / CURVE).read_text().splitlines()[0]).get("population") == count


@pytest.mark.parametrize(
    "model", [":Small", ":Tied", ":Frozen", "transformer[d_model=4]", "ct_rnn", "neural_circuit_policies"]
)
def test_a_population_is_its_trials(model, tmp_path):
    # Attention does not see its key's bias: there Adam would blow rounding up to whole steps.
    trials = seeds(3, model, optimizer="sgd[momentum=0.9]", epochs=3)
    logs: list[str] = []
    run_together(trials, tmp_path / "one", logs=logs)
    alone(trials, tmp_path / "each")
    assert stacked(tmp_path / "one", 3) and not logs
    compare(trials, tmp_path / "each", tmp_path / "one")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_with_every_optimizer_and_a_falling_learning_rate(optimizer, tmp_path):
    trials = seeds(3, optimizer=optimizer, **RESTLESS | {"min_delta": 0.02})
    run_together(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    assert stacked(tmp_path / "one", 3)
    rates = {line["lr"] for place in range(3) for line in curve(tmp_path / "each" / str(place))}
    assert len(rates) > 1, "the learning rate never fell: this test shows nothing"
    compare(trials, tmp_path / "each", tmp_path / "one")


def test_members_stop_and_hit_plateaus_at_different_times(tmp_path):
    trials = seeds(5, **RESTLESS)
    results = run_together(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")
    assert len({result["epochs"] for result in results}) > 1
    rates = [[line["lr"] for line in curve(tmp_path / "one" / str(place))] for place in range(5)]
    assert len({line.count(line[0]) for line in rates}) > 1


def test_members_may_differ_in_their_learning_rate(tmp_path):
    trials = [make(":Small", optimizer=f"adam[lr={lr}]", lr=None, epochs=5) for lr in (0.01, 0.1, 0.001)]
    trials.append(make(":Small", lr=0.03, epochs=5))
    run_together(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    assert stacked(tmp_path / "one", 4)
    compare(trials, tmp_path / "each", tmp_path / "one")


def test_who_is_over_leaves_the_stack_when_half_of_it_is(tmp_path, monkeypatch):
    sizes = []
    make_trainer = engine.make_trainer

    def make_and_count(trial, members, *rest):
        sizes.append(len(members))
        return make_trainer(trial, members, *rest)

    monkeypatch.setattr(engine, "make_trainer", make_and_count)
    trials = seeds(6, **RESTLESS)
    results = run_together(trials, tmp_path / "one")
    assert sizes[0] == 6 and len(sizes) > 1
    assert all(2 * later <= size for size, later in itertools.pairwise(sizes))
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")
    assert len({result["epochs"] for result in results}) > 2


def test_one_that_diverges_does_not_disturb_the_others(tmp_path):
    trials = seeds(5, ":Explodes", epochs=4)
    results = run_together(trials, tmp_path / "one")
    assert {result["status"] for result in results} == {"done", "diverged"}
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")


# ------------------------------------------------------------------------------------ stopped and continued


@pytest.mark.parametrize("optimizer", ["adam", "nadam", "sgd[momentum=0.9]"])
def test_members_at_different_epochs_go_on_together(optimizer, tmp_path):
    trials = seeds(4, optimizer=optimizer, epochs=5)
    for place, epoch in ((0, 3), (1, 1), (2, 3)):
        with pytest.raises(Stop):
            run(trials[place], tmp_path / "one" / str(place), stop_after=epoch)
    run_together(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")
    lines = [json.loads(line) for line in (tmp_path / "one" / "0" / CURVE).read_text().splitlines()]
    assert ["population" in line for line in lines] == [False, False, False, True, True]


def test_what_a_population_began_each_can_end_alone(tmp_path):
    trials = seeds(3, epochs=5)
    with pytest.raises(Stop):
        run_together(trials, tmp_path / "one", stop_after=2)
    assert (tmp_path / "one" / "0" / CHECKPOINT).exists()
    results = alone(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")
    assert not results[0]["exclusive_timing"], "some of its epochs were timed in company"


def test_a_stopped_population_goes_on_in_another_grouping(tmp_path):
    trials = seeds(4, **RESTLESS)
    with pytest.raises(Stop):
        run_together(trials, tmp_path / "one", stop_after=2)
    with pytest.raises(Stop):
        run_together(trials[:2], tmp_path / "one", stop_after=4)
    run_together(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")


def test_all_finished_but_for_the_result(tmp_path):
    trials = seeds(2, epochs=2)
    run_together(trials, tmp_path / "whole")
    with pytest.raises(Stop):
        run_together(trials, tmp_path / "one", stop_after=2)
    run_together(trials, tmp_path / "one")
    compare(trials, tmp_path / "whole", tmp_path / "one")


def test_a_checkpoint_is_in_the_format_of_one_trial(tmp_path):
    """Its names, shapes and settings are those that a run alone writes."""
    from nnarena.engine.tensors import load

    trials = seeds(2)
    with pytest.raises(Stop):
        run_together(trials, tmp_path / "one", stop_after=1)
    with pytest.raises(Stop):
        run(trials[0], tmp_path / "alone", stop_after=1)
    (tensors, about), (twins, twin) = (load(path / CHECKPOINT) for path in (tmp_path / "one" / "0", tmp_path / "alone"))
    assert {n: (t.shape, t.dtype) for n, t in tensors.items()} == {n: (t.shape, t.dtype) for n, t in twins.items()}
    assert json.loads(about["optimizer"]) == json.loads(twin["optimizer"])
    assert about.keys() == twin.keys()


# -------------------------------------------------------------------------------- what cannot be stacked


@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        (":chancy", {}, "random"),
        (":Diverges[after=20]", {}, "data-dependent control flow"),
        (":Differs", {}, "its seeds differ in more than parameters and buffers"),
        (":Small", {"optimizer": ":Signs"}, "Signs is not known to treat the members of a stack apart"),
    ],
)
def test_what_cannot_be_stacked_runs_one_after_another_with_the_same_bits(model, more, reason, tmp_path):
    trials, logs = seeds(2, model, **more), []
    run_together(trials, tmp_path / "one", logs=logs)
    alone(trials, tmp_path / "each")
    for place in "01":
        assert bits(tmp_path / "one" / place) == bits(tmp_path / "each" / place)
    assert len(logs) == 1 and reason in logs[0] and "2 trials run one after another" in logs[0]


def test_an_optimizer_with_norms_may_say_that_it_leaves_members_apart(tmp_path):
    trials = seeds(3, optimizer=":Apart")
    run_together(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    assert stacked(tmp_path / "one", 3)
    compare(trials, tmp_path / "each", tmp_path / "one")


def test_seeds_whose_splits_have_other_sizes_are_stacked_by_size(tmp_path):
    trials = seeds(6, task=":Ragged")
    run_together(trials, tmp_path / "one")
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")
    sizes = set()
    for place in range(6):
        line = json.loads((tmp_path / "one" / str(place) / CURVE).read_text().splitlines()[0])
        sizes.add(line.get("population", 1))
    assert sizes != {6} and max(sizes) > 1


def test_one_that_cannot_start_is_a_row_and_the_others_run(tmp_path, monkeypatch):
    prepare = Member.prepare

    def broken(self, log):
        if self.trial.seed == 1:
            raise ValueError("this seed is cursed")
        return prepare(self, log)

    monkeypatch.setattr(Member, "prepare", broken)
    results = run_together(seeds(3), tmp_path)
    assert [result["status"] for result in results] == ["done", "failed", "done"]
    assert results[1]["error"] == "ValueError: this seed is cursed"


def test_an_error_in_the_middle_sends_all_on_alone_from_where_they_are(tmp_path, monkeypatch):
    train = Stacked.train

    def broken(self, orders, deadline=None):
        if self.members[0].schedule.epoch == 2:
            raise RuntimeError("no kernel\nand a long story")
        return train(self, orders, deadline)

    monkeypatch.setattr(Stacked, "train", broken)
    trials, logs = seeds(2), []
    run_together(trials, tmp_path / "one", logs=logs)
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")
    assert len(logs) == 1 and logs[0].endswith("run one after another and not as one: RuntimeError: no kernel")
    lines = [json.loads(line) for line in (tmp_path / "one" / "0" / CURVE).read_text().splitlines()]
    assert ["population" in line for line in lines] == [True, True, False, False]


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_too_little_memory_halves_a_population(error, tmp_path, monkeypatch):
    train = Stacked.train

    def hungry(self, orders, deadline=None):
        if len(self.members) > 2:
            raise error("no more")
        return train(self, orders, deadline)

    monkeypatch.setattr(Stacked, "train", hungry)
    trials, logs = seeds(5), []
    run_together(trials, tmp_path / "one", logs=logs)
    alone(trials, tmp_path / "each")
    compare(trials, tmp_path / "each", tmp_path / "one")
    assert [line.split(": ")[1] for line in logs] == [
        "not enough memory for 5 trials as one; going on with 3 at a time.",
        "not enough memory for 3 trials as one; going on with 2 at a time.",
    ]


def test_too_little_memory_for_one_is_a_row(tmp_path):
    results = run_together(seeds(2, ":Hungry"), tmp_path)
    assert [result["status"] for result in results] == ["out_of_memory"] * 2


# ------------------------------------------------------------------------------------------- what is written


def test_times_of_a_population_are_marked_as_shared(tmp_path):
    results = run_together(seeds(2, epochs=2), tmp_path)
    assert not any(result["exclusive_timing"] for result in results)
    lines = [json.loads(line) for line in (tmp_path / "1" / CURVE).read_text().splitlines()]
    assert [line["population"] for line in lines] == [2, 2]
    assert results[1]["seconds_total"] == pytest.approx(sum(line["seconds"] for line in lines))


def test_time_runs_out_for_all(tmp_path):
    results = run_together(seeds(2, timeout=1e-9), tmp_path)
    assert [(result["status"], result["epochs"]) for result in results] == [("timeout", 0)] * 2


def test_time_runs_out_for_one(tmp_path):
    trials = seeds(2, timeout=1000.0)
    with pytest.raises(Stop):
        run(trials[0], tmp_path / "0", stop_after=2)
    path = tmp_path / "0" / CURVE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"seconds": 1000.0}) + "\n" for line in lines))
    results = run_together(trials, tmp_path)
    assert [(result["status"], result["epochs"]) for result in results] == [("timeout", 2), ("done", 4)]
    assert results[0]["test"]["mse"] > 0


def test_results_are_told_as_they_come(tmp_path):
    told = []
    trials = seeds(4, **RESTLESS)
    folders = [(trial, TrialFolder(tmp_path / str(place))) for place, trial in enumerate(trials)]

    def finished(trial, result):
        told.append(trial.seed)
        assert (tmp_path / str(trial.seed) / RESULT).exists()

    results = engine.run_population(folders, CPU, on_finish=finished)
    assert sorted(told) == [0, 1, 2, 3]
    assert [results[seed]["epochs"] for seed in told] == sorted(result["epochs"] for result in results)


def test_an_error_of_who_watches_ends_the_run_and_leaves_no_row(tmp_path):
    def watch(trial, line):
        raise BrokenPipeError("the terminal is gone")

    folders = [(trial, TrialFolder(tmp_path / str(trial.seed))) for trial in seeds(2)]
    with pytest.raises(BrokenPipeError):
        engine.run_population(folders, CPU, on_epoch=watch)
    assert not any(folder.is_done for _, folder in folders)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("count", [1, 3])
def test_a_shared_device_that_is_lost_is_no_trials_failure(count, tmp_path, monkeypatch):
    """Its neighbour may have done it: the trial has no row, and goes on another time."""
    trials = [(trial, TrialFolder(tmp_path / str(trial.seed))) for trial in seeds(count, ":Breaks")]
    monkeypatch.setattr(members, "is_lost", lambda device: True)
    with pytest.raises(DeviceLost, match="/Breaks/adam: the device answers no more: "):
        engine.run_population(trials, CPU, exclusive=False)
    assert not any(folder.is_done for _, folder in trials)
    monkeypatch.setattr(members, "is_lost", lambda device: False)
    results = engine.run_population(trials, CPU, exclusive=False)
    assert [result["status"] for result in results] == ["failed"] * count


def test_a_device_that_a_trial_lost_alone_is_its_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(members, "is_lost", lambda device: True)
    assert run(make(":Breaks"), tmp_path)["status"] == "failed"
