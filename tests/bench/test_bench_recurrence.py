"""No time without a right gradient, and every way to train a competitor is a row."""

from __future__ import annotations

import math

import pytest
import torch

from nnarena.bench import compare as stage
from nnarena.bench import peers, recurrence
from nnarena.bench.compare import compare
from nnarena.bench.recurrence import REFERENCE, choose, gradient_error, paths
from nnarena.core.components import catalogue
from nnarena.core.errors import UnknownName
from nnarena.kernels import toolchain
from nnarena.nn import GRU
from nnarena.nn.recurrent import Recurrent

CPU = torch.device("cpu")
# Without a recurrence of their own, or made of layers that are measured already.
OTHERS = {
    "attention_split_actor",
    "mlp",
    "deep_mlp",
    "bidirectional",
    "stacked",
    "conv1d",
    "attention_wise_1d",
    "predictor_lstm",
    "predictor_transformer",
    "predictor_attention_split",
}
MODELS = sorted({*recurrence.PUBLISHED, *recurrence.BESIDES})


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    """Compiling takes longer than all the rest; tests/kernels looks after it."""
    monkeypatch.setattr(toolchain, "compiler", lambda: None)


@pytest.fixture(autouse=True)
def whatever_else_runs_here(monkeypatch):
    monkeypatch.setattr(stage, "BUSY", math.inf)


def rows(*names, **options):
    return list(compare(list(names), CPU, rounds=1, length=4, apart=False, **options))


def test_every_model_is_measured_and_has_its_published_figure():
    recurrent = {name for name, made in catalogue("model").items() if made.reads == "sequences"} - OTHERS
    assert recurrent == set(MODELS)
    assert set(choose([])) == {*MODELS, *peers.PEERS}
    with pytest.raises(UnknownName, match="did you mean 'gru'"):
        choose(["grru"])


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_every_model_is_right(name):
    for path in paths(name, CPU):
        row = recurrence.check(name, path, CPU, 4)
        assert not row.note and row.gradient_error is not None
        assert row.gradient_error < recurrence.LOOSE.get(name, recurrence.TOLERANCE)


def test_each_way_to_train_is_a_row_with_a_positive_ratio():
    told = []
    found = rows("gru", "transformer", REFERENCE, tell=told.append)
    assert [(row.model, row.path) for row in found] == [
        (REFERENCE, "torch"),
        ("gru", "native"),
        ("gru", "eager"),
        ("transformer", "auto"),
    ]
    assert found[0].ratio == 1
    assert all(row.ratio and math.isfinite(row.ratio) and row.ratio > 0 and not row.note for row in found)
    assert all(row.seconds is None for row in found), "on a CPU only ratios are told"
    assert any(text.startswith("gru, eager") for text in told)


def test_compiled_chunks_are_a_way_where_there_is_a_compiler(monkeypatch):
    monkeypatch.setattr(toolchain, "compiler", lambda: "c++")
    assert paths("ct_rnn", CPU) == ["eager", "compiled"]
    assert paths("gru", CPU) == ["native", "eager", "compiled"]
    assert paths("differentiable_neural_computer", CPU) == ["eager", "compiled"]  # its LSTM is a part of its step
    assert paths("gru", torch.device("cuda")) == ["native", "fused", "eager"]


def test_a_wrong_gradient_hides_the_time(monkeypatch):
    right = GRU.native

    def nearly(self, x, state):
        output, last = right(self, x, state)
        return output + 0.01 * (output - output.detach()), last  # the same numbers, a hundredth more gradient

    monkeypatch.setattr(GRU, "native", nearly)
    native, eager = [row for row in rows("gru") if row.model == "gru"]
    assert native.ratio is None and native.note == "failed: its gradient is wrong"
    assert native.gradient_error == pytest.approx(0.01, rel=0.5)
    assert eager.ratio is not None and eager.ratio > 0


def test_a_gradient_that_is_no_number_is_wrong(monkeypatch):
    monkeypatch.setattr(GRU, "native", lambda self, x, state: (x.mean() * math.nan * self.weight_ih.sum(), state))
    row = recurrence.check("gru", "native", CPU, 4)
    assert row.note.startswith("failed")


def test_what_raises_is_a_row_that_says_why(monkeypatch):
    def broken(self, *given, **more):
        raise RuntimeError("out of registers")

    monkeypatch.setattr(Recurrent, "_loop", broken)
    row = next(row for row in rows("gru") if row.path == "eager")
    assert row.ratio is None and row.note == "failed: out of registers"


def test_a_peer_that_is_not_installed_is_skipped(monkeypatch):
    name = "torchdiffeq CT-RNN"
    absent = peers.Peer(peers.PEERS[name].build, "torchdiffeq", "no_such_package")
    monkeypatch.setitem(peers.PEERS, name, absent)
    assert rows(name)[1].note == "skipped: no_such_package is not installed"


@pytest.mark.parametrize("name", ["torch.nn.GRU", "ncps LTC", "ncps CfC"])
def test_peers_train_too(name):
    assert recurrence.check(name, "theirs", CPU, 4).note == ""


def test_the_circuit_of_ncps_is_as_large_as_ours():
    task = recurrence.make_task("neural_circuit_policies", 4)
    ours, theirs = (recurrence.build(name, task, CPU) for name in ("neural_circuit_policies", "ncps LTC"))
    assert ours.layer.units == theirs.layer.state_size
    assert ours.layer.wiring.synapses == int(abs(theirs.layer.rnn_cell._wiring.adjacency_matrix).sum())


def test_an_idle_parameter_is_not_held_against_anybody():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))

        def forward(self, x):
            return x[:, -1, :1] * self.used + 0 * self.idle

    task = recurrence.make_task("lstm", 4)
    assert gradient_error(Half(), task, *recurrence.batch(task, CPU)) < 1e-5


@pytest.mark.parametrize("name", ["ode_lstm", "ct_gru", "unitary_rnn"])
def test_a_population_takes_the_steps_of_its_members(name):
    task = recurrence.make_task(name, 4)
    x, y = recurrence.batch(task, CPU)
    models = [recurrence.build(name, task, CPU, seed) for seed in range(2)]
    before = [param.detach().clone() for param in models[1].parameters()]
    recurrence.population_step(models, task, x, y)()
    assert all(torch.equal(old, new) for old, new in zip(before, models[1].parameters(), strict=True))
    assert recurrence.prepare_population(name, "eager", CPU, 2, 4)() is None


def test_a_ratio_beside_a_disturbed_reference_says_so(monkeypatch):
    monkeypatch.setattr(stage, "BUSY", 2.0)
    monkeypatch.setattr(stage, "side_by_side", lambda *_: (1.0, 50.0))
    _, row = rows("gru", REFERENCE)[:2]
    assert row.ratio == 0.02 and "busy" in row.note and "repeat" in row.note


def test_a_process_apart_gives_the_same_row():
    with stage.Apart(1) as there, stage.Here(1) as here:
        assert there.check("gru", "eager", CPU, 4) == here.check("gru", "eager", CPU, 4)
        there.prepare("gru", "eager", CPU, 4)
        assert there.measure(1) > 0
