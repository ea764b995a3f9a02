"""A person's own model, as plain as they wrote it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nnarena.core.errors import ArenaError
from nnarena.core.spec import TaskSpec
from nnarena.nn.adopt import adopt

PLAIN = TaskSpec(input_shape=(6, 3), output_size=2, target="values")
STEPS = TaskSpec(input_shape=(6, 3), output_size=2, target="values", per_step=True)
TIMED = TaskSpec(input_shape=(6, 3), output_size=2, target="values", timespans=True)
X, TIME = torch.randn(4, 6, 3), torch.rand(4, 6)


class Layer(nn.Module):
    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.inner = nn.GRU(input_size, hidden_size, batch_first=True)

    def forward(self, x, state=None):
        return self.inner(x, state)


class Decaying(nn.Module):
    def __init__(self, input_size: int, hidden_size: int = 5):
        super().__init__()
        self.hidden_size = hidden_size
        self.mix = nn.Linear(input_size, hidden_size)

    def forward(self, x, state=None, timespans=None):
        return self.mix(x) * timespans.unsqueeze(-1), state


class Whole(nn.Module):
    def __init__(self, input_size, output_size, hidden_size=7):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, output_size))

    def forward(self, x):
        return self.net(x).mean(1)


class Sizeless(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.LazyLinear(2)

    def forward(self, x):
        return self.net(x[:, -1])


def build(target, spec, **options):
    component = adopt(target)
    return component.load()(spec, **component.resolve(options))


def test_a_layer_gets_a_dense_one_behind_it():
    model = build(Layer, PLAIN)
    assert model.head.in_features == 64, "hidden_size is 64 where the class does not say"
    assert build(Layer, PLAIN, hidden_size=9).head.in_features == 9
    torch.testing.assert_close(model(X), model.head(model.layer(X)[0][:, -1]))
    assert build(Layer, STEPS)(X).shape == (4, 6, 2)


def test_a_whole_model_is_left_as_it_is():
    model = build(Whole, PLAIN, hidden_size=3)
    assert isinstance(model, Whole) and model.net[0].out_features == 3
    assert model(X).shape == (4, 2)


def test_a_builder_gets_the_specification():
    seen = []

    def net(spec, width: int = 4):
        seen.append((spec, width))
        return nn.Linear(3, 2)

    build(net, PLAIN, width=6)
    assert seen == [(PLAIN, 6)]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_module_without_sizes_is_built_without():
    assert build(Sizeless, PLAIN)(X).shape == (4, 2)


def test_time_is_one_more_feature_for_who_does_not_know_it():
    whole = build(Whole, TIMED)
    torch.testing.assert_close(whole(X, TIME), whole.model(torch.cat([X, TIME.unsqueeze(-1)], -1)))
    layer = build(Layer, TIMED)
    assert layer.layer.inner.input_size == 4
    assert not torch.allclose(layer(X, TIME), layer(X, 2 * TIME))


def test_time_goes_to_who_knows_it():
    model = build(Decaying, TIMED)
    assert model.layer.mix.in_features == 3
    torch.testing.assert_close(model(X, TIME), model.head((model.layer.mix(X) * TIME.unsqueeze(-1))[:, -1]))


def test_what_is_no_module_is_a_sentence():
    def net(spec):
        return 3

    with pytest.raises(ArenaError, match=r"net gave a int; a model must be a torch\.nn\.Module"):
        build(net, PLAIN)

    class Wrong:
        pass

    with pytest.raises(ArenaError, match=r"Wrong cannot be a model: a class must be a subclass of torch\.nn\.Module"):
        adopt(Wrong)
