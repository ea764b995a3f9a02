"""The MLP against its equation, and what it reads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.mlp import MLP

SPEC = TaskSpec(input_shape=(5, 17), output_size=12, target="values")


def build(spec: TaskSpec = SPEC, **options):
    torch.manual_seed(0)
    component = catalogue("model")["mlp"]
    return component.load()(spec, **component.resolve(options))


def test_it_is_its_equation():
    torch.manual_seed(0)
    mlp = MLP(3, 2, 8, 2).double()
    first, norm, _, second, norm2, _, last = mlp.layers
    x = torch.randn(4, 3, dtype=torch.float64)
    h = F.gelu(F.layer_norm(x @ first.weight.T + first.bias, (8,), norm.weight, norm.bias))
    h = F.gelu(F.layer_norm(h @ second.weight.T + second.bias, (8,), norm2.weight, norm2.bias))
    torch.testing.assert_close(mlp(x), h @ last.weight.T + last.bias)


def test_the_default_is_the_published_actor_without_attention():
    model = build()
    assert sum(param.numel() for param in model.parameters()) == 17 * 256 + 256 + 2 * 256 + 256 * 12 + 12


def test_it_reads_the_last_frame_or_all():
    x = torch.randn(2, 5, 17)
    other = x.clone()
    other[:, 0] += 1
    assert torch.equal(build()(x), build()(other))
    assert not torch.equal(build(reads="all")(x), build(reads="all")(other))


def test_at_every_step_it_reads_that_step():
    spec = TaskSpec(input_shape=(5, 17), output_size=2, target="values", per_step=True)
    x = torch.randn(2, 5, 17)
    torch.testing.assert_close(build(spec)(x)[:, 3], build(spec)(x[:, 3:4])[:, 0])
    with pytest.raises(Unfit, match="reads=last"):
        build(spec, reads="all")


@pytest.mark.parametrize("options", [{"hidden_size": 0}, {"layers": 0}])
def test_sizes_below_one_are_refused(options):
    with pytest.raises(ValueError, match="must be at least 1, not 0"):
        build(**options)
