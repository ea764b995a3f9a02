"""torch's own recurrent layers are looked at as ours are, and answer as ever."""

from __future__ import annotations

import pytest
import torch
from diagnose_helpers import Values, flow
from torch import nn

from nnarena.diagnose.measure import measure
from nnarena.diagnose.record import Record
from nnarena.nn import GRU, LSTM
from nnarena.nn.head import SequenceModel

B, T, F, H = 3, 9, 2, 5
KINDS = {
    "rnn": lambda **more: nn.RNN(F, H, **more),
    "relu": lambda **more: nn.RNN(F, H, nonlinearity="relu", **more),
    "gru": lambda **more: nn.GRU(F, H, **more),
    "lstm": lambda **more: nn.LSTM(F, H, **more),
    "deep lstm": lambda **more: nn.LSTM(F, H, num_layers=3, **more),
    "projected lstm": lambda **more: nn.LSTM(F, H, num_layers=2, proj_size=3, **more),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_a_recorded_layer_answers_as_ever(kind: str, batch_first: bool, given: bool) -> None:
    torch.manual_seed(0)
    layer = KINDS[kind](batch_first=batch_first).double()
    x = torch.randn(*((B, T) if batch_first else (T, B)), F, dtype=torch.float64)
    state = None
    if given:
        _, state = layer(x)
        state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
    expected, last = layer(x, state)
    record = Record(layer)
    with record.watching():
        output, end = layer(x, state)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(end, last)
    assert "forward" not in vars(layer)
    (loop,) = record.loops
    assert len(loop.states) == T and all(len(parts) == 1 for parts in loop.handed)
    wanted = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    found = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("theirs", "ours"), [(nn.LSTM, LSTM), (nn.GRU, GRU)])
def test_torchs_and_ours_with_the_same_weights_have_the_same_figures(theirs: type, ours: type) -> None:
    torch.manual_seed(0)
    task = Values(T, F, 2, per_step=True)
    mine = SequenceModel(ours(F, H), task.spec)
    other = SequenceModel(theirs(F, H, batch_first=True), task.spec)
    other.head.load_state_dict(mine.head.state_dict())
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh"):
            getattr(other.layer, f"{name}_l0").copy_(getattr(mine.layer, name))
        other.layer.bias_ih_l0.copy_(mine.layer.bias if ours is LSTM else mine.layer.bias_ih)
        other.layer.bias_hh_l0.copy_(torch.zeros(4 * H) if ours is LSTM else mine.layer.bias_hh)
    x, target = torch.randn(B, T, F), torch.randn(B, T, 2)
    first, second = (measure(model, task, (x,), target) for model in (mine, other))
    for of in ("input", "state"):
        assert flow(second, of)["norms"] == pytest.approx(flow(first, of)["norms"], rel=1e-9)
    for key in ("radius", "norm"):
        assert second["jacobian"][0][key] == pytest.approx(first["jacobian"][0][key], rel=1e-9)
    layers = [{item["name"]: item for item in measured["layers"]} for measured in (first, second)]
    assert layers[1]["layer"]["saturated"] == layers[0]["layer"]["saturated"] is not None


@pytest.mark.parametrize("more", [{"bidirectional": True}, {"num_layers": 2, "dropout": 0.5}])
def test_what_cannot_be_taken_step_by_step_is_left_whole(more: dict) -> None:
    torch.manual_seed(0)
    layer, x = nn.GRU(F, H, batch_first=True, **more), torch.randn(B, T, F)
    record = Record(layer)
    with record.watching():
        output, _ = layer(x)
    assert record.loops == [] and output.shape[:2] == (B, T) and len(record.layers) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_is_called_step_by_step_is_one_run(kind: str) -> None:
    torch.manual_seed(0)
    layer, x = KINDS[kind](batch_first=True).double(), torch.randn(B, T, F, dtype=torch.float64)
    expected, _ = layer(x)
    record, state, outputs = Record(layer), None, []
    with record.watching():
        for step in x.split(1, 1):
            output, state = layer(step, state)
            outputs.append(output)
        layer(x)  # from the beginning: another run
    torch.testing.assert_close(torch.cat(outputs, 1), expected)
    first, second = record.loops
    torch.testing.assert_close(first.states, second.states)
    assert len(first.states) == T and second.name.endswith("(2)")
