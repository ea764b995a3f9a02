"""What only a GPU can show. Run with `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import STEPS, Stop, assert_same, curve, make, run, run_together

from nnarena.core.options import Choice
from nnarena.core.protocol import Protocol
from nnarena.core.trial import Trial, make_trial
from nnarena.engine import graph
from nnarena.engine.prepare import prepare
from nnarena.engine.stack import Stacked
from nnarena.engine.step import train_step
from nnarena.engine.tensors import load
from nnarena.engine.trial import run_trial
from nnarena.nn import GRU, LSTM
from nnarena.results.folder import MODEL, TrialFolder

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def small_trial(model: str) -> Trial:
    protocol = Protocol(epochs=3, batch_size=32, samples=640)
    return make_trial("test", Choice("add", {"length": 20}), Choice(model), Choice("adam"), protocol, seed=0)


@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_cudnn_agrees_with_the_steps_in_float64_without_a_warning(layer: type) -> None:
    torch.manual_seed(0)
    ours = layer(5, 7, device=CUDA)
    exact = layer(5, 7, dtype=torch.float64, backend="eager")
    exact.load_state_dict(ours.state_dict())
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    torch.backends.cudnn.allow_tf32 = False
    outputs = [ours(x.float().to(CUDA))[0], exact(x)[0]]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[0].cpu().double(), outputs[1], atol=1e-5, rtol=1e-5)
    for (name, param), wanted in zip(ours.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(param.grad.cpu().double(), wanted.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("model", ["lstm", "gru", "transformer"])
def test_training_steps_never_wait_for_the_device(model: str, never_waiting) -> None:
    arena = prepare(small_trial(model), CUDA)
    order = torch.arange(64, device=CUDA).view(2, 32)
    train_step(arena.model, arena.task, arena.state, *arena.parts["train"].batch(order[0]))  # libraries load here
    with never_waiting():
        for index in order.unbind():
            train_step(arena.model, arena.task, arena.state, *arena.parts["train"].batch(index))


@pytest.mark.parametrize("model", ["lstm", "gru", "transformer"])
def test_a_trial_starts_from_the_same_weights_and_data_as_on_the_cpu(model: str) -> None:
    here, there = (prepare(small_trial(model), device) for device in (torch.device("cpu"), CUDA))
    for name, param in here.state.params.items():
        assert torch.equal(param, there.state.params[name].cpu()), name
    assert torch.equal(here.parts["train"].inputs[0], there.parts["train"].inputs[0].cpu())


@pytest.mark.parametrize("model", ["lstm", "gru", "transformer"])
def test_a_stopped_trial_goes_on_as_if_nothing_had_happened(model: str, tmp_path) -> None:
    trial = small_trial(model)
    whole = run_trial(trial, TrialFolder(tmp_path / "whole"), CUDA)
    stopped = TrialFolder(tmp_path / "stopped")

    class Stop(BaseException):
        pass

    def stop(line: dict) -> None:
        if line["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        run_trial(trial, stopped, CUDA, on_epoch=stop)
    continued = run_trial(trial, stopped, CUDA)
    assert continued["test"]["mse"] == pytest.approx(whole["test"]["mse"], rel=1e-4)
    assert whole["peak_memory"] > 0
    print(model, "same bits:", (tmp_path / "whole" / MODEL).read_bytes() == (stopped.path / MODEL).read_bytes())


def test_out_of_memory_is_a_row(tmp_path) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        result = run_trial(small_trial("lstm"), TrialFolder(tmp_path), CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert result["status"] == "out_of_memory"


# --------------------------------------------------------------------------------- the whole step as one graph

MODELS = ["lstm[hidden_size=6]", "gru[hidden_size=6]", "transformer[d_model=4]", "ct_rnn", ":Small", ":Reassigns"]
SGD = "sgd[momentum=0.9]"  # unlike Adam it does not blow the rounding of a vanishing gradient up to whole steps
OPTIMIZERS = [
    "adam",
    "sgd[momentum=0.9]",
    "adamw",
    "nadam",
    "rmsprop[momentum=0.5]",
    "adagrad",
    "adadelta",
    "orthadam",
    "adamp",
    "sgdp",
]
RESTLESS = {"epochs": 10, "stop_patience": 4, "plateau_patience": 1, "min_delta": 0.02}


@pytest.fixture
def recordings(monkeypatch):
    """Every attempt to record, as (name, whether it worked)."""
    made, record = [], graph.Replayed._record

    def count(self):
        record(self)
        made.append((self.name.rsplit(": ", 1)[-1], self.graph is not None))

    monkeypatch.setattr(graph.Replayed, "_record", count)
    return made


def without_graphs(monkeypatch):
    monkeypatch.setattr(graph, "WARM_UP", 10**9)


@pytest.mark.parametrize("model", MODELS)
def test_a_recorded_trial_is_the_one_that_is_not(model, tmp_path, monkeypatch, recordings) -> None:
    logs: list[str] = []
    trial = make(model, optimizer=SGD)
    run(trial, tmp_path / "graph", logs=logs, device=CUDA)
    assert logs == [] and recordings == [("a step", True), ("validation", True)], "recorded once, for all epochs"
    without_graphs(monkeypatch)
    run(trial, tmp_path / "plain", device=CUDA)
    assert len(recordings) == 2
    weights = load(tmp_path / "graph" / MODEL)[0]
    assert_same(tmp_path / "graph", tmp_path / "plain", 1e-5)
    same = all(torch.equal(tensor, load(tmp_path / "plain" / MODEL)[0][name]) for name, tensor in weights.items())
    print(model, "same bits:", same)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_recorded_or_steps_by_itself(optimizer, tmp_path, monkeypatch, recordings) -> None:
    run(make(":Small", optimizer=optimizer), tmp_path / "graph", device=CUDA)
    assert recordings == [("a step", True), ("validation", True)]
    without_graphs(monkeypatch)
    run(make(":Small", optimizer=optimizer), tmp_path / "plain", device=CUDA)
    assert_same(tmp_path / "graph", tmp_path / "plain", 1e-5)
    run(make(":Small", optimizer=optimizer), tmp_path / "cpu")
    assert_same(tmp_path / "graph", tmp_path / "cpu", 1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd[momentum=0.9]"])
def test_a_falling_learning_rate_needs_no_new_recording(optimizer, tmp_path, recordings) -> None:
    trial = make(":Small", optimizer=optimizer, **RESTLESS)
    run(trial, tmp_path / "gpu", device=CUDA)
    assert len({line["lr"] for line in curve(tmp_path / "gpu")}) > 1
    assert len(recordings) == 2
    run(trial, tmp_path / "cpu")
    assert_same(tmp_path / "gpu", tmp_path / "cpu", 1e-3)


@pytest.mark.parametrize("first", ["cuda", "cpu"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_trial_goes_on_from_a_checkpoint_of_either_device(optimizer, first, tmp_path) -> None:
    devices = [torch.device(first), torch.device("cpu" if first == "cuda" else "cuda")]
    trial = make(":Small", optimizer=optimizer)
    with pytest.raises(Stop):
        run(trial, tmp_path / "moved", stop_after=2, device=devices[0])
    run(trial, tmp_path / "moved", device=devices[1])
    run(trial, tmp_path / "whole", device=devices[1])
    assert_same(tmp_path / "moved", tmp_path / "whole", 1e-3)


def test_a_model_that_waits_for_the_device_goes_on_without_a_graph(tmp_path, recordings) -> None:
    logs: list[str] = []
    result = run(make(":Diverges[after=1000]"), tmp_path / "gpu", logs=logs, device=CUDA)
    assert result["status"] == "done" and ("a step", True) not in recordings
    assert len(logs) == 1 and "a step runs without a CUDA graph: the host waits" in logs[0]
    run(make(":Diverges[after=1000]"), tmp_path / "cpu")
    assert_same(tmp_path / "gpu", tmp_path / "cpu", 1e-3)


def test_a_recording_that_breaks_off_costs_nothing_but_the_graph(tmp_path, monkeypatch) -> None:
    """With dropout: the random numbers must go on as if nobody had tried."""
    logs: list[str] = []
    assert run(make(":waits", optimizer=SGD), tmp_path / "tried", logs=logs, device=CUDA)["status"] == "done"
    assert len(logs) == 2 and all("runs without a CUDA graph" in line for line in logs)
    without_graphs(monkeypatch)
    run(make(":waits", optimizer=SGD), tmp_path / "plain", device=CUDA)
    assert_same(tmp_path / "tried", tmp_path / "plain", 1e-5)


def test_dropout_is_another_one_at_every_replay(tmp_path, recordings) -> None:
    assert run(make(":noisy", optimizer=SGD), tmp_path / "one", device=CUDA)["status"] == "done"
    assert recordings[0] == ("a step", True)
    run(make(":noisy", optimizer=SGD), tmp_path / "two", device=CUDA)
    assert_same(tmp_path / "one", tmp_path / "two", 1e-6)
    seen = []
    dropout = torch.nn.Dropout(0.5)
    ones = torch.ones(1000, device=CUDA)
    kept = torch.zeros(1000, device=CUDA)

    def drop() -> None:
        kept.copy_(dropout(ones))

    replayed = graph.Replayed(drop, CUDA, print, "it")
    for _ in range(STEPS):
        replayed()
        seen.append(kept.clone())
    assert replayed.graph is not None
    assert len({tuple(mask.tolist()) for mask in seen}) == STEPS


# ----------------------------------------------------------------------------------------------- populations


def seeds(count, model=":Small", **more):
    return [make(model, seed=seed, **more) for seed in range(count)]


@pytest.mark.parametrize("optimizer", ["adam", "sgd[momentum=0.9]", "adagrad"])
@pytest.mark.parametrize("model", [":Small", "ct_rnn"])
def test_a_population_is_its_trials(model, optimizer, tmp_path, recordings) -> None:
    trials, logs = seeds(3, model, optimizer=optimizer), []
    run_together(trials, tmp_path / "one", logs=logs, device=CUDA)
    assert logs == [] and recordings == [("a step", True), ("validation", True)]
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place), device=CUDA)
        assert_same(tmp_path / "one" / str(place), tmp_path / "each" / str(place), 1e-3)


def test_a_population_with_ends_at_different_times(tmp_path) -> None:
    trials = seeds(5, **RESTLESS)
    results = run_together(trials, tmp_path / "one", device=CUDA)
    assert len({result["epochs"] for result in results}) > 1
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place))
        assert_same(tmp_path / "one" / str(place), tmp_path / "each" / str(place), 1e-3)


def test_a_population_goes_on_where_trials_stopped(tmp_path) -> None:
    trials = seeds(3)
    for place, epoch in ((0, 2), (1, 1)):
        with pytest.raises(Stop):
            run(trials[place], tmp_path / "one" / str(place), stop_after=epoch, device=CUDA)
    run_together(trials, tmp_path / "one", device=CUDA)
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place), device=CUDA)
        assert_same(tmp_path / "one" / str(place), tmp_path / "each" / str(place), 1e-3)


def test_out_of_memory_halves_a_population(tmp_path, monkeypatch) -> None:
    train = Stacked.train

    def hungry(self, orders, deadline=None):
        if len(self.members) > 2:
            torch.empty(1 << 44, dtype=torch.uint8, device=CUDA)
        return train(self, orders, deadline)

    monkeypatch.setattr(Stacked, "train", hungry)
    logs: list[str] = []
    results = run_together(seeds(4), tmp_path, logs=logs, device=CUDA)
    assert [result["status"] for result in results] == ["done"] * 4
    assert len(logs) == 1 and "not enough memory for 4 trials as one; going on with 2" in logs[0]


def test_what_is_over_gives_its_memory_back(tmp_path) -> None:
    run_together(seeds(3), tmp_path / "warm", device=CUDA)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for number in range(3):
        run_together(seeds(3), tmp_path / str(number), device=CUDA)
    assert torch.cuda.memory_allocated() <= before + 1_000_000


@pytest.mark.parametrize("model", [":Small", "lstm"])
def test_a_watched_gradient_is_recorded_with_the_step(model, tmp_path, recordings) -> None:
    trials, logs = seeds(3, model, watch_gradient=True), []
    run_together(trials, tmp_path / "one", logs=logs, device=CUDA)
    assert logs == [] and recordings == [("a step", True), ("validation", True)]
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place), device=CUDA)
        run(trial, tmp_path / "cpu" / str(place))
        lines = [curve(tmp_path / way / str(place)) for way in ("one", "each", "cpu")]
        for one, each, cpu in zip(*lines, strict=True):
            assert each["training"] == pytest.approx(one["training"], rel=1e-2, abs=1e-6)
            assert each["training"] == pytest.approx(cpu["training"], rel=1e-2, abs=1e-6)


SETTINGS = [
    {"clip_norm": 0.05, "l2": 1e-3, "input_noise": 0.1},
    {"clip_value": 0.01, "l1": 1e-3, "weight_noise": 0.02, "watch_gradient": True},
    {"label_smoothing": 0.1, "label_noise": 0.2, "bagging": True, "schedule": "cosine", "warmup": 1},
    {"full_batch": True},
    {"dropout": 0.3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_regularisers_and_schedules_are_recorded_and_are_what_they_are_alone(settings, tmp_path) -> None:
    """In a CUDA graph, as one and alone, and as on the CPU."""
    common = {"task": "digits", "model": "deep_mlp[hidden_size=8,layers=2]", "optimizer": "momentum", "epochs": 3}
    trials = [make(**common, seed=seed, **settings) for seed in range(3)]
    logs: list[str] = []
    run_together(trials, tmp_path / "one", logs=logs, device=CUDA)
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place), logs=logs, device=CUDA)
        run(trial, tmp_path / "cpu" / str(place))
        assert_same(tmp_path / "each" / str(place), tmp_path / "one" / str(place), tolerance=1e-3)
        assert_same(tmp_path / "cpu" / str(place), tmp_path / "one" / str(place), tolerance=1e-3)
    assert not logs, "a step was not recorded, or the trials were not stacked"
