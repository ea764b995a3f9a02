"""The deep MLP: its equation, and what becomes of gradients in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nnarena.engine.start import set_start
from nnarena.nn.deep_mlp import DeepMLP


def test_it_is_its_equation():
    model = DeepMLP(6, 2, 5, 3, activation="tanh").double()
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    h = x.flatten(1)
    linear = [part for part in model.layers if isinstance(part, nn.Linear)]
    for layer in linear[:-1]:
        h = torch.tanh(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(model(x), h @ linear[-1].weight.T + linear[-1].bias)
    assert len(linear) == 4 and all(not layer.bias.any() for layer in linear)


def test_batch_norm_and_dropout_are_in_every_layer():
    model = DeepMLP(6, 2, 5, 3, activation="relu", batch_norm=True, dropout=0.5)
    kinds = [type(part) for part in model.layers]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout] * 3 + [nn.Linear]


def first_gradient(activation: str, init: str, layers: int = 12) -> float:
    """How long the gradient of the first weights is, at the start."""
    torch.manual_seed(1)
    model = DeepMLP(64, 10, 64, layers, activation=activation).double()
    set_start(model, init, 7)
    loss = nn.functional.cross_entropy(model(torch.rand(256, 64, dtype=torch.float64)), torch.arange(256) % 10)
    weights = [part.weight for part in model.layers if isinstance(part, nn.Linear)]
    return float(torch.autograd.grad(loss, weights[0])[0].norm())


@pytest.mark.parametrize(
    ("activation", "good", "bad"),
    [("sigmoid", "logistic", "glorot_uniform"), ("tanh", "glorot_uniform", "uniform"), ("relu", "he", "uniform")],
)
def test_gradients_vanish_in_twelve_layers_unless_the_start_is_right(activation, good, bad):
    assert first_gradient(activation, good) > 0.01
    assert first_gradient(activation, good) > 100 * first_gradient(activation, bad)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layers": 0}, "layers must be at least 1"),
        ({"hidden_size": 0}, "hidden_size must be at least 1"),
        ({"activation": "gelu"}, "activation is one of sigmoid, tanh, relu, not 'gelu'"),
        ({"dropout": 1.0}, "dropout must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_is_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        DeepMLP(3, 2, **options)
