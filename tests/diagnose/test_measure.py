"""Every figure beside what is worked out by hand, in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from diagnose_helpers import Elman, Values, flow
from torch import Tensor, nn

from nnarena.core.components import catalogue
from nnarena.core.spec import TaskSpec
from nnarena.core.task import Task
from nnarena.diagnose.jacobian import step_jacobian, stretching
from nnarena.diagnose.measure import measure
from nnarena.diagnose.record import Record
from nnarena.kernels.recurrence import BACKENDS
from nnarena.nn import CTGRU, CTRNN, DNC, GRU, LSTM, ODELSTM, AttentionSplit, UnitaryRNN
from nnarena.nn.head import SequenceModel
from nnarena.report.diagnosis import terminal
from nnarena.report.diagnosis_page import build_diagnosis

B, T, F, H = 3, 7, 2, 5


def elman(squash: bool = True) -> tuple[SequenceModel, Values, Tensor, Tensor]:
    torch.manual_seed(0)
    task = Values(T, F, 1)
    model = SequenceModel(Elman(F, H, squash), task.spec).double()
    return model, task, torch.randn(B, T, F, dtype=torch.float64), torch.randn(B, 1, dtype=torch.float64)


def test_gradients_of_a_plain_network_are_those_worked_out_by_hand() -> None:
    model, task, x, target = elman()
    layer, head = model.layer, model.head.weight.detach()
    W, V, bias = layer.W.detach(), layer.V.weight.detach(), layer.V.bias.detach()
    states = [torch.zeros(B, H, dtype=torch.float64)]
    for t in range(T):
        states.append((x[:, t] @ V.t() + bias + states[-1] @ W.t()).tanh())
    error = states[-1] @ head.t() + model.head.bias.detach() - target
    g = 2 * error @ head  # ∂L_b/∂h_T of each sample's own loss
    by_state, by_input, gradient_W, gradient_V = [], [], torch.zeros_like(W), torch.zeros_like(V)
    for t in range(T - 1, -1, -1):
        by_state.append(float(g.norm(dim=1).mean()))
        inner = g * (1 - states[t + 1] ** 2)
        by_input.append(float((inner @ V).norm(dim=1).mean()))
        gradient_W += inner.t() @ states[t] / B
        gradient_V += inner.t() @ x[:, t] / B
        g = inner @ W
    measured = measure(model, task, (x,), target)
    assert flow(measured, "state")["norms"] == pytest.approx(by_state, rel=1e-12)
    assert flow(measured, "input")["norms"] == pytest.approx(by_input, rel=1e-12)
    assert flow(measured, "state")["ratio"] == pytest.approx(by_state[-1] / by_state[0])
    assert flow(measured, "state")["factor"] == pytest.approx((by_state[-1] / by_state[0]) ** (1 / (T - 1)))
    assert measured["loss"] == pytest.approx(float(error.square().mean()))
    parameters = {item["name"]: item for item in measured["parameters"]}
    assert parameters["layer.W"]["gradient"] == pytest.approx(float(gradient_W.norm()), rel=1e-12)
    assert parameters["layer.V.weight"]["gradient"] == pytest.approx(float(gradient_V.norm()), rel=1e-12)
    assert parameters["layer.W"]["relative"] == pytest.approx(float(gradient_W.norm() / W.norm()))
    assert parameters["layer.W"]["std"] == pytest.approx(float(W.std(unbiased=False)))
    layers = {item["name"]: item for item in measured["layers"]}
    assert list(layers) == ["layer", "head"]
    outputs = torch.stack(states[1:], 1)
    assert layers["layer"]["mean"] == pytest.approx(float(outputs.mean()))
    assert (layers["layer"]["low"], layers["layer"]["high"]) == (float(outputs.min()), float(outputs.max()))
    saturated = float((1 - outputs**2 < 0.05).double().mean())
    assert layers["layer"]["saturated"] == pytest.approx(saturated)
    assert layers["head"]["gradient"] == pytest.approx(float((2 * error).norm(dim=1).mean()))


def test_the_bound_that_explains_it_holds_at_every_step() -> None:
    """‖∂L/∂h_t‖ ≤ ‖∂L/∂h_T‖ · ‖W‖^{T−t} · Π ‖diag(σ′)‖"""
    model, task, x, target = elman()
    norms = flow(measure(model, task, (x[:1],), target[:1]), "state")["norms"]
    with torch.no_grad():
        outputs = model.layer(x[:1])[0][0]
        stretch = float(torch.linalg.matrix_norm(model.layer.W, 2))
    bound = norms[0]
    for k in range(1, T):
        bound *= stretch * float((1 - outputs[T - k] ** 2).max())
        assert 0 < norms[k] <= bound


def test_the_number_of_samples_does_not_change_a_norm() -> None:
    model, task, x, target = elman()
    one = measure(model, task, (x[:1],), target[:1])
    many = measure(model, task, (x[:1].repeat(4, 1, 1),), target[:1].repeat(4, 1))
    for of in ("input", "state"):
        assert flow(many, of)["norms"] == pytest.approx(flow(one, of)["norms"], rel=1e-12)
    for a, b in zip(one["layers"] + one["parameters"], many["layers"] + many["parameters"], strict=True):
        assert a["gradient"] == pytest.approx(b["gradient"], rel=1e-12)


CELLS = {
    "lstm": lambda: LSTM(F, H),
    "gru": lambda: GRU(F, H),
    "ct_rnn": lambda: CTRNN(F, H),
    "ode_lstm": lambda: ODELSTM(F, H),
    "unitary": lambda: UnitaryRNN(F, 6, capacity=4),
    "ct_gru": lambda: CTGRU(F, H, scales=3),
    "attention_split": lambda: AttentionSplit(F, 6, 2, variant="released", dropout=0.0),
    "dnc": lambda: DNC(F, 1, hidden_size=H, slots=3, width=2, reads=1),
}


@pytest.mark.parametrize("name", CELLS)
def test_the_gradient_is_the_product_of_jacobians(name: str) -> None:
    """∂L/∂s_t = J_tᵀ ∂L/∂s_{t+1}, with a loss of the last step; where s says all, the first one too."""
    torch.manual_seed(1)
    layer = CELLS[name]().double()
    x = torch.randn(2, T, F, dtype=torch.float64)
    record = Record(layer)
    with record.watching():
        output, _ = layer(x)
    (loop,) = record.loops
    handed = [part for parts in loop.handed for part in parts]
    grads = torch.autograd.grad(output[:, -1].square().sum(), handed, allow_unused=True)
    found = {id(tensor): grad for tensor, grad in zip(handed, grads, strict=True)}
    whole = len(loop.handed[0]) == 1  # the output is a part of the state
    back = 0 if whole else 1
    for sample in range(2):
        g = found[id(loop.states[T - 1 - back])]
        assert g is not None
        g = g[sample]
        for t in range(T - 1 - back, 0, -1):
            J = step_jacobian(loop.step, loop.constants, loop.input(t, sample), loop.state(t, sample), loop.unflatten)
            g = J.t() @ g
            expected = found[id(loop.states[t - 1])]
            torch.testing.assert_close(g, expected[sample], rtol=1e-8, atol=1e-12)


def test_the_spectral_radius_is_the_largest_eigenvalue() -> None:
    model, task, x, target = elman(squash=False)
    block = 1.1 * torch.tensor([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]], dtype=torch.float64)
    values = torch.block_diag(block, torch.diag(torch.tensor([0.9, -0.5, 0.2], dtype=torch.float64)))
    base = torch.randn(H, H, dtype=torch.float64) + 2 * torch.eye(H, dtype=torch.float64)
    with torch.no_grad():
        model.layer.W.copy_(base @ values @ torch.linalg.inv(base))
    (found,) = measure(model, task, (x,), target)["jacobian"]
    for which in ("mean", "low", "high"):
        assert found["radius"][which] == pytest.approx(1.1, rel=1e-9)
        assert found["norm"][which] == pytest.approx(
            float(torch.linalg.matrix_norm(model.layer.W.detach(), 2)), rel=1e-9
        )
    assert (found["name"], found["size"], found["count"]) == ("layer", H, 8)


def test_one_step_and_one_sample_suffice_and_a_large_state_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, x, target = elman()
    measured = measure(model, Values(1, F, 1), (x[:1, :1],), target[:1])
    assert measured["jacobian"][0]["count"] == 1
    assert math.isnan(flow(measured, "state")["factor"]) and len(flow(measured, "state")["norms"]) == 1
    assert measured["too_large"] == []
    for room in ("jacobian", "measure"):
        monkeypatch.setattr(f"nnarena.diagnose.{room}.LARGEST", H - 1)
    measured = measure(model, Values(T, F, 1), (x,), target)
    assert (measured["jacobian"], measured["too_large"]) == ([], ["layer"])


def test_weights_that_are_not_numbers_can_be_looked_at() -> None:
    model, task, x, target = elman()
    with torch.no_grad():
        model.layer.W[0, 0] = math.nan
    measured = measure(model, task, (x,), target)
    assert math.isnan(measured["loss"]) and measured["jacobian"][0]["radius"]["mean"] == math.inf
    found = {"model": "elman", "task": "none", "optimizer": "adam", "study": "", "seed": 0, "samples": B}
    found |= {"losses": "last", "training": None, "before": measured, "after": None}
    assert "no gradient" in terminal(found, 140) and "There is no gradient to draw" in build_diagnosis(found)


def written(forcing: str) -> tuple[nn.Module, Task, Tensor, Tensor]:
    """A writer of tokens without attention, a source with padding in front, and its target."""
    task = catalogue("task")["reverse"].load()(length=4, shortest=2, symbols=4)
    torch.manual_seed(0)
    model = catalogue("model")["encoder_decoder"].load()(task.spec, attention=None, hidden_size=H, forcing=forcing)
    source = torch.tensor([[3, 4, 5, 6], [0, 0, 4, 3], [0, 6, 5, 3]])
    target = torch.tensor([[6, 5, 4, 3, 2], [3, 4, 2, 0, 0], [3, 5, 6, 2, 0]])
    return model.double(), task, source, target


def test_a_writer_of_tokens_is_looked_at_as_it_is_taught() -> None:
    model, task, source, target = written("teacher")
    measured = measure(model, task, (source,), target)
    embedded = model.source(source).detach().requires_grad_()
    states = [torch.zeros(B, H, dtype=torch.float64)]
    before = torch.cat([torch.ones(B, 1, dtype=torch.int64), target[:, :-1]], 1)
    logits = []
    for layer, inputs in ((model.encoder, embedded), (model.decoder, model.target(before))):
        for x in inputs.unbind(1):
            states.append(layer(x.unsqueeze(1), states[-1])[1])
            logits.append(model.head(states[-1]))
    logits = torch.stack(logits[source.shape[1] :], 1)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)
    by_input, *by_state = torch.autograd.grad(loss, [embedded, *states[1:]])
    assert measured["loss"] == pytest.approx(loss.item(), rel=1e-12)
    wanted = [B * float(grad.norm(dim=1).mean()) for grad in by_state]
    flows = {item["name"]: item["norms"][::-1] for item in measured["flow"]}
    assert flows["encoder"] == pytest.approx(wanted[:4], rel=1e-9)
    assert flows["decoder"] == pytest.approx(wanted[4:], rel=1e-9)
    norms, there = B * by_input.norm(dim=2), source != 0  # padding is no input: nobody's mean
    assert flows["source"] == pytest.approx(((norms * there).sum(0) / there.sum(0)).tolist(), rel=1e-9)


def test_who_writes_token_by_token_runs_once_through_time() -> None:
    model, task, source, target = written("free")
    found = measure(model, task, (source,), target)
    assert [(item["name"], len(item["norms"])) for item in found["flow"]] == [
        ("source", 4),
        ("encoder", 4),
        ("decoder", 5),
    ]
    assert [item["name"] for item in found["jacobian"]] == ["encoder", "decoder"]
    said = model(source).argmax(-1)  # a writer that is told its own words is one that runs free
    record = Record(model)
    with record.watching():
        model(source)
    again = Record(written("teacher")[0])
    with again.watching():
        again.model(source, said)
    ours, theirs = record.loops[-1], again.loops[-1]
    for place in range(5):
        torch.testing.assert_close(ours.states[place], theirs.states[place])
        torch.testing.assert_close(ours.input(place, 1), theirs.input(place, 1))
        torch.testing.assert_close(ours.state(place, 1), theirs.state(place, 1))


def test_rows_of_a_jacobian_may_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task, x, target = elman()
    whole = measure(model, task, (x,), target)["jacobian"]
    monkeypatch.setattr("nnarena.diagnose.jacobian.ROWS", 2)
    assert measure(model, task, (x,), target)["jacobian"] == whole


LONG = Values(60, 2, 1)


def long(layer: nn.Module) -> dict:
    torch.manual_seed(3)
    x, target = torch.rand(4, 60, 2), torch.rand(4, 1)
    return measure(SequenceModel(layer, LONG.spec), LONG, (x,), target)


def test_a_unitary_network_keeps_the_gradient_and_others_lose_it() -> None:
    torch.manual_seed(2)
    kept = long(UnitaryRNN(2, 16, capacity=4))
    (step,) = kept["jacobian"]
    assert all(step[key][which] == pytest.approx(1, abs=1e-6) for key in ("radius", "norm") for which in step[key])
    norms = flow(kept, "state")["norms"]
    assert norms == pytest.approx([norms[0]] * 60, rel=1e-5)
    for layer in (LSTM(2, 16), CTRNN(2, 16), GRU(2, 16)):
        lost = long(layer)
        norms = flow(lost, "state")["norms"]
        assert lost["jacobian"][0]["radius"]["high"] < 1
        assert flow(lost, "state")["ratio"] < 0.05 and norms[59] < norms[30] < norms[5]


def test_the_backend_does_not_matter_and_is_left_alone() -> None:
    found = []
    for backend in BACKENDS:
        torch.manual_seed(0)
        layer = LSTM(2, 6, backend=backend)
        model = SequenceModel(layer, LONG.spec)
        torch.manual_seed(1)
        found.append(measure(model, LONG, (torch.rand(4, 60, 2),), torch.rand(4, 1)))
        assert layer.backend == backend and "drive" not in vars(layer)
    assert all(other == found[0] for other in found[1:])


class Odd(nn.Module):
    """ReLUs of which two of four are never on, in place; a tanh that is saturated, a sigmoid that is not; dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 4)
        self.relu = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.flat = nn.Flatten()
        self.tanh = nn.Tanh()
        self.last = nn.Linear(4, 1)
        with torch.no_grad():
            self.first.bias.copy_(torch.tensor([100.0, -100.0, 100.0, -100.0]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.relu(self.first(x[:, -1])))
        return self.last(torch.sigmoid(0 * self.tanh(1e4 + self.flat(self.drop(x)))))


def test_dead_and_saturated_units_are_counted_where_they_are() -> None:
    torch.manual_seed(0)
    model, x, target = Odd(), torch.randn(8, T, 2), torch.randn(8, 1)
    before, noise = copy.deepcopy(model.eval().state_dict()), torch.random.get_rng_state()
    measured = measure(model, Values(T, 2, 1), (x,), target)
    layers = {item["name"]: item for item in measured["layers"]}
    assert list(layers) == ["first", "relu", "norm", "drop", "tanh", "last", "model"]  # flattening changes nothing
    assert (layers["relu"]["dead"], layers["first"]["dead"], layers["norm"]["dead"]) == (0.5, 0, 0.5)
    assert (layers["tanh"]["saturated"], layers["model"]["saturated"]) == (1, 0)
    assert layers["first"]["saturated"] is None
    assert layers["first"]["low"] < -90 and layers["relu"]["low"] == 0  # what a ReLU does in place comes later
    assert layers["relu"]["gradient"] == 0 and layers["last"]["gradient"] > 0
    assert measured["flow"][0]["norms"][1:] == [0] * (T - 1)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not model.training and torch.equal(noise, torch.random.get_rng_state())


class Stubborn(nn.Module):
    """Makes a float32 tensor of its own, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 4)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.head(h)


def test_a_model_that_insists_on_float32_is_left_in_it() -> None:
    x, target = torch.randn(B, T, 2), torch.randn(B, 1)
    measured = measure(Stubborn(), Values(T, 2, 1), (x,), target)
    assert measured["precision"] == "float32" and all(norm > 0 for norm in flow(measured, "input")["norms"])
    assert measure(SequenceModel(GRU(2, 4), LONG.spec), LONG, (x,), target)["precision"] == "float64"
    with pytest.raises(RuntimeError):
        measure(Stubborn(), Values(T, 3, 1), (torch.randn(B, T, 3),), target)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(5, 3), LSTM(3, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x[..., 0]))[0][:, -1])


def test_symbols_have_no_gradient_but_what_stands_for_them_has() -> None:
    task = Task()
    task.spec = TaskSpec(input_shape=(T, 1), output_size=5, target="class")
    measured = measure(Tokens(), task, (torch.randint(0, 5, (B, T, 1)),), torch.arange(B))
    assert [(item["name"], item["of"]) for item in measured["flow"]] == [("embed", "input"), ("layer", "state")]
    assert all(norm > 0 for item in measured["flow"] for norm in item["norms"])


def test_what_runs_twice_is_told_apart() -> None:
    layer = GRU(F, F)
    record = Record(layer)
    with record.watching():
        layer(layer(torch.randn(B, T, F))[0])
    assert [loop.name for loop in record.loops] == ["model", "model (2)"]
    assert stretching(record.loops[1])["size"] == F
    assert len(record.layers[0].outputs) == 2
