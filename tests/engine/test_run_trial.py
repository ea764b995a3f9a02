"""A trial from its request to its result: the same bits however often it is stopped, and a row whatever happens."""

from __future__ import annotations

import errno
import json
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from engine_helpers import COMPETITORS, CPU, STEPS, Stop, bits, curve, make, run, run_together

from nnarena.core.errors import StoreError
from nnarena.core.workload import expected_calls
from nnarena.engine import members
from nnarena.engine.prepare import prepare
from nnarena.engine.stack import Stacked
from nnarena.engine.step import evaluate
from nnarena.engine.tensors import load
from nnarena.engine.trainer import Alone
from nnarena.engine.trial import EPOCHS, run_trial
from nnarena.kernels import recurrence, toolchain
from nnarena.kernels.cpu import runtime as cpu
from nnarena.results.folder import CHECKPOINT, CURVE, MODEL, RESULT, TRIAL, TrialFolder

SIZES = {"lstm": "lstm[hidden_size=6]", "gru": "gru[hidden_size=6]", "transformer": "transformer[d_model=4]"}
MODELS = [SIZES.get(name, name) for name in COMPETITORS] + [":noisy", ":Reassigns", ":Tied"]


# --------------------------------------------------------------------------------------------- the same bits


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Every model's uninterrupted run."""
    runs: dict[str, Path] = {}

    def uninterrupted(model: str) -> Path:
        if model not in runs:
            runs[model] = tmp_path_factory.mktemp("whole")
            assert run(make(model), runs[model])["status"] == "done"
        return runs[model]

    return uninterrupted


@pytest.mark.parametrize("model", MODELS)
def test_again_is_the_same(model, whole, tmp_path):
    torch.manual_seed(time.time_ns() % 1000)
    torch.rand(7)
    result = run(make(model), tmp_path)
    assert bits(tmp_path) == bits(whole(model))
    assert bits(tmp_path, result)["result"] == bits(tmp_path)["result"], "what is returned is what is stored"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stops", [(1,), (3,), (1, 2, 3)], ids=str)
def test_stopped_and_continued_is_the_same(model, stops, whole, tmp_path):
    for epoch in stops:
        with pytest.raises(Stop):
            run(make(model), tmp_path, stop_after=epoch)
        assert not (tmp_path / RESULT).exists()
        assert (tmp_path / CHECKPOINT).exists()
    run(make(model), tmp_path)
    assert bits(tmp_path) == bits(whole(model))
    assert not (tmp_path / CHECKPOINT).exists(), "the checkpoint goes when the trial is done"


@pytest.mark.parametrize("model", ["lstm[hidden_size=6]", ":noisy"])
def test_an_epoch_written_after_the_last_checkpoint_is_done_again(model, whole, tmp_path):
    with pytest.raises(Stop):
        run(make(model), tmp_path, stop_after=2)
    with (tmp_path / CURVE).open("a") as file:
        file.write('{"epoch": 3, "loss": 7, "validation": {"mse": 0}, "lr": 1, "seconds": 1}\n{"epoch": 4, "lo')
    run(make(model), tmp_path)
    assert bits(tmp_path) == bits(whole(model))


def damages():
    yield "empty", lambda raw: b""
    for share in (0.01, 0.2, 0.5, 0.99):
        yield f"cut at {share}", lambda raw, share=share: raw[: int(len(raw) * share)]
    yield "last bit", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])
    yield "middle bit", lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 8]) + raw[len(raw) // 2 + 1 :]
    yield "learning rate", lambda raw: raw.replace(b'lr\\": 0.01', b'lr\\": 0.02')
    yield "schedule", lambda raw: raw.replace(b'epoch\\": 2', b'epoch\\": 1')
    yield "other JSON", lambda raw: raw.replace(b'\\"groups\\"', b'\\"groupz\\"')


@pytest.mark.parametrize("damage", [pytest.param(damage, id=name) for name, damage in damages()])
def test_a_damaged_checkpoint_costs_time_but_not_the_result(damage, whole, tmp_path):
    model, logs = "lstm[hidden_size=6]", []
    with pytest.raises(Stop):
        run(make(model), tmp_path, stop_after=2)
    raw = (tmp_path / CHECKPOINT).read_bytes()
    assert damage(raw) != raw
    (tmp_path / CHECKPOINT).write_bytes(damage(raw))
    run(make(model), tmp_path, logs=logs)
    assert bits(tmp_path) == bits(whole(model))
    assert len(logs) == 1 and "checkpoint" in logs[0] and "starts again from its beginning" in logs[0]


def test_a_continued_run_tells_what_was_before(tmp_path):
    with pytest.raises(Stop):
        run(make(), tmp_path, stop_after=2)
    told = []
    run_trial(make(), TrialFolder(tmp_path), CPU, on_epoch=told.append)
    assert [line["epoch"] for line in told] == [1, 2, 3, 4]
    assert told == TrialFolder(tmp_path).curve()


def test_seconds_add_up_over_a_stop(tmp_path):
    with pytest.raises(Stop):
        run(make(":Sleeps[seconds=0.01]", epochs=3), tmp_path, stop_after=2)
    result = run(make(":Sleeps[seconds=0.01]", epochs=3), tmp_path)
    assert result["seconds_total"] >= 3 * STEPS * 0.01
    assert result["seconds_per_epoch"] == pytest.approx(result["seconds_total"] / 3)


# -------------------------------------------------------------------------------------- what is written down


def test_a_result_holds_what_the_design_promises(tmp_path):
    trial = make(seed=3)
    result = run(trial, tmp_path)
    written = json.loads((tmp_path / RESULT).read_text())
    assert written == json.loads(json.dumps(result))
    promised = """task model optimizer options seed status parameters epochs best_epoch seconds_total seconds_per_epoch
        exclusive_timing peak_memory validation test error"""
    assert set(promised.split()) <= written.keys()
    assert (written["task"], written["model"], written["optimizer"], written["seed"]) == (*trial.cell, 3)
    assert written["options"]["model"] == {"hidden_size": 6} and written["options"]["protocol"]["batch_size"] == 16
    assert written["parameters"] == 4 * 6 * (2 + 6 + 1) + 6 + 1
    assert (written["status"], written["epochs"], written["exclusive_timing"]) == ("done", 4, True)
    assert written["baselines"]["mean"]["mse"] == pytest.approx(1 / 6, rel=0.5)
    record = json.loads((tmp_path / TRIAL).read_text())
    assert (record["id"], record["status"]) == (trial.id, "done")
    assert record["seeds"] == {purpose: trial.axis(purpose) for purpose in ("data", "split", "start")}
    assert record["versions"]["torch"] == torch.__version__


def test_a_running_trial_says_so_and_shows_its_curve_live(tmp_path):
    seen = []

    def look(line):
        seen.append((json.loads((tmp_path / TRIAL).read_text())["status"], len(curve(tmp_path))))

    run_trial(make(), TrialFolder(tmp_path), CPU, on_epoch=look)
    assert seen == [("running", epoch) for epoch in (1, 2, 3, 4)]


def test_the_curve_counts_epochs_and_holds_the_learning_rate(tmp_path):
    run(make(), tmp_path)
    lines = curve(tmp_path)
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert {line["lr"] for line in lines} == {0.01}
    assert lines[-1]["loss"] < lines[0]["loss"]


# ------------------------------------------------------------------------------------------------- honesty


def test_the_test_metrics_are_those_of_the_best_epoch_not_of_the_last(tmp_path):
    best = 2 * STEPS
    result = run(make(f":Swings[after={best}]", ":zeros", epochs=5), tmp_path)
    assert [line["validation"]["mse"] for line in curve(tmp_path)] == [16.0**2, 0, 16.0**2, 32.0**2, 48.0**2]
    assert (result["best_epoch"], result["epochs"]) == (2, 5)
    assert result["test"] == {"mse": 0.0} and result["validation"] == {"mse": 0.0}
    weights, _ = load(tmp_path / MODEL)
    assert int(weights["steps"]) == best


def test_the_stored_weights_give_the_stored_scores(tmp_path):
    trial = make(epochs=3)
    result = run(trial, tmp_path)
    arena = prepare(trial, CPU)
    weights, _ = load(tmp_path / MODEL)
    for part in ("validation", "test"):
        assert evaluate(arena.model, arena.task, weights, arena.parts[part], 16) == result[part]


def read(path: Path) -> list[tuple[str, str]]:
    return [tuple(line.split()) for line in path.read_text().splitlines()]


def test_rivals_see_the_same_batches_in_the_same_order(tmp_path):
    rivals = {
        "plain": make(f":Records[log={tmp_path / 'plain'}]"),
        "noisy": make(f":Records[log={tmp_path / 'noisy'},noise=true]"),
        "sgd": make(f":Records[log={tmp_path / 'sgd'}]", optimizer="sgd"),
        "seed 1": make(f":Records[log={tmp_path / 'seed1'}]", seed=1),
    }
    for name, trial in rivals.items():
        run(trial, tmp_path / f"trial {name}")
    assert len(read(tmp_path / "plain")) == 4 * (STEPS + 2) + 2 + 2
    assert read(tmp_path / "plain") == read(tmp_path / "noisy") == read(tmp_path / "sgd")
    assert not set(read(tmp_path / "plain")) & set(read(tmp_path / "seed1"))
    epochs = [read(tmp_path / "plain")[epoch * (STEPS + 2) : epoch * (STEPS + 2) + STEPS] for epoch in range(4)]
    assert len({hash for epoch in epochs for _, hash in epoch}) == 4 * STEPS, "every epoch has an order of its own"


def test_the_test_set_is_read_once_at_the_end(tmp_path):
    run(make(f":Records[log={tmp_path / 'log'}]"), tmp_path / "trial")
    seen = read(tmp_path / "log")
    count = Counter(digest for mode, digest in seen if mode == "eval")
    # Two batches of validation after each of four epochs and once more at the end; two batches of test, once.
    assert sorted(count.values()) == [1, 1, 5, 5]
    assert all(count[digest] == 1 for _, digest in seen[-2:])
    assert not set(count) & {digest for mode, digest in seen if mode == "train"}


@pytest.mark.parametrize("model", [model for model in MODELS if model != ":noisy"])
def test_rivals_with_time_and_series_run_too(model, tmp_path):
    assert run(make(model, ":Timed", epochs=1), tmp_path)["status"] == "done"


def test_no_progress_stops_early_with_the_learning_rate_lowered_twice(tmp_path):
    result = run(make(task=":Flat", epochs=50), tmp_path)
    assert (result["status"], result["epochs"], result["best_epoch"]) == ("done", 6, 1)
    rates = [line["lr"] for line in curve(tmp_path)]
    assert rates == pytest.approx([0.01, 0.01, 0.01, 0.001, 0.001, 0.0001])


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_early_stopping_and_the_plateau_survive_a_stop(stop, tmp_path):
    with pytest.raises(Stop):
        run(make(task=":Flat", epochs=50), tmp_path / "stopped", stop_after=stop)
    run(make(task=":Flat", epochs=50), tmp_path / "stopped")
    run(make(task=":Flat", epochs=50), tmp_path / "whole")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_a_stop_after_the_last_epoch_only_writes_the_result(tmp_path):
    with pytest.raises(Stop):
        run(make(epochs=2), tmp_path / "stopped", stop_after=2)
    run(make(epochs=2), tmp_path / "stopped")
    run(make(epochs=2), tmp_path / "whole")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


# ---------------------------------------------------------------------------------- whatever happens is a row


def test_a_divergence_is_a_row_with_its_best_epoch(tmp_path):
    trial = make(f":Diverges[after={2 * STEPS + 3}]", epochs=10)
    result = run(trial, tmp_path)
    assert (result["status"], result["epochs"], result["error"]) == ("diverged", 3, None)
    assert result["best_epoch"] in (1, 2) and result["test"]["mse"] > 0
    lines = curve(tmp_path)
    assert lines[-1]["loss"] is None and lines[-1]["validation"]["mse"] is None
    assert result["validation"]["mse"] == min(line["validation"]["mse"] for line in lines[:2])
    assert int(load(tmp_path / MODEL)[0]["steps"]) == result["best_epoch"] * STEPS
    assert json.loads((tmp_path / TRIAL).read_text())["status"] == "diverged"


def test_a_divergence_comes_out_the_same_after_a_stop(tmp_path):
    trial = make(f":Diverges[after={2 * STEPS + 3}]", epochs=10)
    with pytest.raises(Stop):
        run(trial, tmp_path / "stopped", stop_after=1)
    run(trial, tmp_path / "stopped")
    run(trial, tmp_path / "whole")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_a_divergence_from_the_start_has_nothing_to_test(tmp_path):
    result = run(make(":Diverges[after=3]"), tmp_path)
    assert (result["status"], result["best_epoch"], result["test"]) == ("diverged", 0, {})
    assert not (tmp_path / MODEL).exists()
    assert result["baselines"]


@pytest.mark.parametrize(
    ("model", "status", "error"),
    [
        (":Breaks", "failed", "ZeroDivisionError: the cell [broke] at last"),
        (":Hungry", "out_of_memory", "MemoryError: no more"),
    ],
)
def test_an_error_in_a_model_is_a_row_with_its_reason(model, status, error, tmp_path):
    result = run(make(model), tmp_path)
    assert (result["status"], result["error"], result["epochs"]) == (status, error, 1)
    assert result["test"] == {} and result["parameters"] == 3
    text = (tmp_path / "traceback.txt").read_text()
    assert "own_nets.py" in text and text.rstrip().endswith(error)
    assert TrialFolder(tmp_path).is_done


def test_too_few_samples_are_a_row_with_the_sentence(tmp_path):
    result = run(make(samples=100), tmp_path)
    assert result["status"] == "failed"
    assert result["error"].startswith("100 samples are too few")


def test_time_runs_out_into_a_row(tmp_path):
    result = run(make(":Sleeps[seconds=0.01]", epochs=100, timeout=1.0), tmp_path)
    assert result["status"] == "timeout" and 1 <= result["epochs"] <= 6
    assert result["test"]["mse"] > 0 and result["best_epoch"] >= 1


def test_no_time_at_all_leaves_nothing_to_test(tmp_path):
    result = run(make(timeout=1e-9), tmp_path)
    assert (result["status"], result["epochs"], result["test"]) == ("timeout", 0, {})


def test_time_before_a_stop_counts(tmp_path):
    trial = make(":Sleeps[seconds=0.01]", epochs=100, timeout=0.5)
    with pytest.raises(Stop):
        run(trial, tmp_path, stop_after=1)
    line = json.loads((tmp_path / CURVE).read_text())
    (tmp_path / CURVE).write_text(json.dumps(line | {"seconds": 1000.0}) + "\n")
    result = run(trial, tmp_path)
    assert (result["status"], result["epochs"]) == ("timeout", 1)


def test_a_full_disk_is_no_fault_of_the_model(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(members, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        run(make(), tmp_path)
    assert not TrialFolder(tmp_path).is_done
    monkeypatch.undo()
    run(make(), tmp_path)
    run(make(), tmp_path / "whole")
    assert bits(tmp_path) == bits(tmp_path / "whole")


@pytest.mark.parametrize("error", [BrokenPipeError, RuntimeError])
def test_an_error_of_who_watches_is_no_fault_of_the_model(error, tmp_path):
    def watch(line):
        raise error("the terminal is gone")

    with pytest.raises(error):
        run_trial(make(), TrialFolder(tmp_path), CPU, on_epoch=watch)
    assert not TrialFolder(tmp_path).is_done, "it must go on another day, not be a failed row for ever"


def test_two_at_once_on_one_trial_are_refused(tmp_path, monkeypatch):
    locked = TrialFolder.locked
    with TrialFolder(tmp_path).locked(), pytest.raises(StoreError, match="Another process is working on"):
        monkeypatch.setattr(TrialFolder, "locked", lambda self: locked(self, patience=0.1))
        run(make(), tmp_path)


def test_the_callers_threads_come_back(tmp_path):
    before = torch.get_num_threads()
    run(make(threads=before + 1, epochs=1), tmp_path)
    assert torch.get_num_threads() == before


# --------------------------------------------------------------------------------------------- on the CPU


@pytest.fixture
def heard(monkeypatch) -> list[int]:
    """How many calls were to be expected, at every step."""
    numbers: list[int] = []
    for kind in (Alone, Stacked):
        learn = kind._gradients_of
        monkeypatch.setattr(kind, "_gradients_of", lambda *given, learn=learn: _noting(numbers, learn, *given))
    return numbers


def _noting(numbers, learn, *given):
    numbers.append(expected_calls())
    return learn(*given)


@pytest.mark.parametrize(("epochs", "calls"), [(4, 4 * STEPS), (EPOCHS, EPOCHS * STEPS), (500, EPOCHS * STEPS)])
def test_a_layer_can_know_how_long_it_will_be_trained(epochs, calls, heard, tmp_path):
    """The same number at every epoch and after a stop: by it a layer decides how it computes."""
    for epoch in (1, 3):
        with pytest.raises(Stop):
            run(make(epochs=epochs), tmp_path, stop_after=epoch)
    assert heard == [calls] * 3 * STEPS and expected_calls() == 0


def test_to_a_population_nothing_is_said(heard, tmp_path):
    run_together([make(seed=seed, epochs=1) for seed in range(2)], tmp_path)
    assert heard == [0] * STEPS


@pytest.mark.skipif(toolchain.compiler() is None, reason="there is no C++ compiler")
def test_compiled_steps_give_the_same_bits_after_a_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(recurrence, "REPAID", 1)
    monkeypatch.setattr(cpu, "_made", {})
    logs: list[str] = []
    trial = make("ct_gru[hidden_size=3]", epochs=3)
    run(trial, tmp_path / "whole", logs=logs)
    assert cpu._made and not any("compile" in line for line in logs)
    with pytest.raises(Stop):
        run(trial, tmp_path / "stopped", stop_after=1)
    run(trial, tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_what_kernels_say_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(recurrence, "REPAID", 1)
    monkeypatch.setattr(recurrence, "_loops", {})
    monkeypatch.setattr(cpu, "_made", {})
    monkeypatch.setattr(toolchain, "compiler", lambda: "/no/such/compiler")
    recurrence._tell.cache_clear()
    logs: list[str] = []
    assert run(make("ct_gru[hidden_size=3]", epochs=1), tmp_path, logs=logs)["status"] == "done"
    assert any("CTGRU.step" in line and "/no/such/compiler" in line for line in logs)
