"""Initialisers: their distributions, and which weights of a model they set."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import nnarena
from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit, UnknownName
from nnarena.core.spec import TaskSpec
from nnarena.engine.start import set_start, weights_of

N, M = 300, 200  # inputs, outputs
UNIFORM = {"uniform": 1 / math.sqrt(N), "glorot_uniform": math.sqrt(6 / (N + M)), "he_uniform": math.sqrt(6 / N)}
NORMAL = {
    "glorot_normal": (0, math.sqrt(2 / (N + M))),
    "he": (0, math.sqrt(2 / N)),
    "logistic": (-8 / N, 3.6 / math.sqrt(N)),
}
SEQUENCE = TaskSpec(input_shape=(5, 3), output_size=2, target="values")


def filled(name: str, *shape: int, inputs: int = N, outputs: int = M, seed: int = 0) -> torch.Tensor:
    weight = torch.full(shape or (outputs, inputs), torch.nan, dtype=torch.float64)
    catalogue("initialiser")[name].load()(weight, inputs, outputs, torch.Generator().manual_seed(seed))
    return weight


def test_every_initialiser_is_looked_at():
    assert catalogue("initialiser").keys() == UNIFORM.keys() | NORMAL.keys() | {"orthogonal", "identity"}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_ones_fill_their_range_evenly(name):
    weight, limit = filled(name), UNIFORM[name]
    assert weight.abs().max() <= limit
    places = ((weight.flatten() + limit) / (2 * limit)).sort().values
    assert (places - torch.linspace(0, 1, N * M, dtype=torch.float64)).abs().max() < 1.63 / math.sqrt(N * M)


@pytest.mark.parametrize("name", NORMAL)
def test_normal_ones_have_their_mean_and_spread(name):
    mean, std = NORMAL[name]
    places = torch.special.ndtr((filled(name).flatten() - mean) / std).sort().values
    assert (places - torch.linspace(0, 1, N * M, dtype=torch.float64)).abs().max() < 1.63 / math.sqrt(N * M)


def test_the_mean_of_logistic_is_never_below_minus_one():
    assert filled("logistic", 5000, 4, inputs=4).mean() == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("shape", [(6, 6), (6, 9), (9, 6), (4, 3, 3, 3)])
def test_orthogonal_rows_or_columns(shape):
    weight = filled("orthogonal", *shape).flatten(1)
    gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64))


def test_identity_is_one_matrix_a_gate():
    assert torch.equal(filled("identity", 8, 4, inputs=4, outputs=8), torch.eye(4, dtype=torch.float64).repeat(2, 1))
    with pytest.raises(Unfit, match=r"its recurrent weights are \(6, 4\), which is no stack of square matrices"):
        filled("identity", 6, 4, inputs=4, outputs=6)


@pytest.mark.parametrize("name", sorted(catalogue("initialiser").keys() - {"identity"}))
def test_the_seed_decides(name):
    assert torch.equal(filled(name), filled(name)) and not torch.equal(filled(name), filled(name, seed=1))


@pytest.mark.parametrize(
    ("layer", "inputs", "outputs"),
    [
        (nn.Linear(7, 5), 7, 5),
        (nn.Conv1d(6, 4, 3), 18, 12),
        (nn.Conv2d(6, 4, (3, 5)), 90, 60),
        (nn.Conv2d(6, 4, 3, groups=2), 27, 18),
        (nn.ConvTranspose2d(6, 4, 3), 54, 36),
        (nn.RNN(3, 4), 3, 4),
    ],
)
def test_inputs_and_outputs_of_a_unit(layer, inputs, outputs):
    _, _, found, others = next(weights_of(layer))
    assert (found, others) == (inputs, outputs)
    if not isinstance(layer, (nn.ConvTranspose2d, nn.RNN)) and getattr(layer, "groups", 1) == 1:
        assert nn.init._calculate_fan_in_and_fan_out(layer.weight) == (inputs, outputs)


class Mixed(nn.Module):
    """Of everything one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.rnn = nn.Embedding(4, 3), nn.LayerNorm(3), nn.GRU(3, 3)
        self.one, self.tied, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.tied.weight = self.one.weight
        self.weight = nn.Parameter(torch.rand(3, 3))  # nobody says what of


def changed(model: nn.Module, name: str) -> set[str]:
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    set_start(model, name, 3)
    return {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}


def test_only_weights_are_set_and_each_once():
    assert changed(Mixed(), "he") == {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "one.weight"}
    assert [name for name, *_ in weights_of(Mixed())] == ["weight_ih_l0", "weight_hh_l0", "weight"]


def test_identity_sets_recurrent_matrices_only():
    model = Mixed()
    assert changed(model, "identity") == {"rnn.weight_hh_l0"}
    assert torch.equal(model.rnn.weight_hh_l0, torch.eye(3).repeat(3, 1))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("gru", {"layer.weight_ih", "layer.weight_hh", "head.weight"}),
        ("ct_gru", {"layer.weight_ih", "layer.weight_hh", "layer.weight_qh", "head.weight"}),
        ("unitary_rnn", {"layer.weight_ih", "head.weight"}),
    ],
)
def test_what_is_set_of_our_layers(model, names):
    assert changed(catalogue("model")[model].load()(SEQUENCE), "he") == names


@pytest.mark.parametrize(
    ("model", "init", "reason"),
    [
        ("mlp", "identity", "init=identity has nothing to set: it has no matrix from a state to the next one"),
        ("neural_circuit_policies", "he", "init=he has nothing to set: it has no weights"),
    ],
)
def test_what_has_nothing_to_set_says_so(model, init, reason):
    with pytest.raises(Unfit, match=reason):
        set_start(catalogue("model")[model].load()(SEQUENCE), init, 0)


def test_a_signal_keeps_its_size_in_deep_nets_as_the_docstrings_say():
    """Through ten layers of 400: he with ReLU, glorot without activation; uniform loses √3 a layer."""
    torch.manual_seed(99)
    x = torch.randn(64, 400, dtype=torch.float64)
    sizes = {}
    for name, activation in (("he", torch.relu), ("glorot_uniform", lambda x: x), ("uniform", lambda x: x)):
        h = x
        for layer in range(10):
            h = activation(h @ filled(name, 400, 400, inputs=400, outputs=400, seed=layer).T)
        sizes[name] = float(h.square().mean() / x.square().mean())
    assert 0.5 < sizes["he"] < 2 and 0.5 < sizes["glorot_uniform"] < 2
    assert 0.5 < sizes["uniform"] * 3**10 < 2


def test_build_takes_an_initialiser():
    torch.manual_seed(0)
    one = nnarena.build("gru", task="digits", init="identity")
    assert torch.equal(one.layer.weight_hh[:80], torch.eye(80))
    with pytest.raises(UnknownName, match="no initialiser 'hee'; did you mean 'he'"):
        nnarena.build("gru", task="digits", init="hee")
