"""Kernels whose warps have all of a sample's matrices each, in Triton's interpreter, against autograd in float64."""

from __future__ import annotations

import re

import pytest
import torch
from kernel_helpers import DEVICES, assert_near, inputs, reference, train
from sm90 import loop_of
from torch import nn

from nnarena.kernels import recurrence
from nnarena.kernels.gpu.runtime import Kernels, Loop
from nnarena.nn import MemoryAugmentedTransformer
from nnarena.nn.recurrent import Recurrent

SIZES = {  # of a memory of sixteen rows
    "published": {},
    "odd": {"rows": 11, "columns": 7, "d_model": 10, "nhead": 3, "dim_feedforward": 70},
    "nothing wide": {"rows": 9, "columns": 3, "d_model": 6, "dim_feedforward": 20},
    "tokens wide": {"rows": 16, "columns": 9, "d_model": 66, "nhead": 1, "dim_feedforward": 40},
    "all wide": {"rows": 13, "columns": 16, "d_model": 64, "nhead": 1, "dim_feedforward": 130},
}


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})


def the_loop():
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    return loop


def compare(layer, given):
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    for part, wanted in zip(results, exact, strict=True):
        assert_near(part, wanted, "result")
    for name in slopes:
        assert_near(gradients[name], slopes[name], name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", SIZES)
def test_gradients_are_those_of_autograd(sizes, device):
    """From another state than zero, through the last state."""
    torch.manual_seed(0)
    layer = MemoryAugmentedTransformer(3, 2, **SIZES[sizes], backend="fused").to(device)
    compare(layer, inputs(layer, 3, 5))
    assert the_loop().at(3).plan.divided


class Wide(Recurrent):
    """Rows of a memory through dense layers, whose products are added to others in every order."""

    def __init__(self, middle):
        super().__init__(3, 16, backend="fused")
        shapes = {"widen": (16, middle), "narrow": (middle, 16), "beside": (16, 16), "bias": (middle,)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 4))

    def initial_state(self, batch, like):
        return like.new_zeros(batch, 16, 16)

    def constants(self):
        return self.widen, self.narrow, self.beside, self.bias

    @staticmethod
    def step(constants, u, state):
        widen, narrow, beside, bias = constants
        made = (state @ widen + bias).tanh()
        both = torch.cat([made, state], -1) @ torch.cat([narrow, beside])  # one sum of parts and of what is whole
        most = (made * made.softmax(-1)).sum(-1, keepdim=True)
        all_of_it = made.mean((1, 2), keepdim=True) + state.mean((1, 2), keepdim=True)  # in parts, and by every warp
        state = (both + made.mean(-1, keepdim=True) + all_of_it + u[:, None, :1] * most).sin()
        return state, state.sum(1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("middle", [64, 100, 128, 200])
def test_what_is_wide_is_summed_with_what_is_not(middle, device):
    torch.manual_seed(0)
    layer = Wide(middle).to(device)
    compare(layer, inputs(layer, 3, 4))
    made = the_loop().at(3)
    assert made.plan.divided
    if middle < 200:  # else what is left over is a sum of its own
        assert "tl.where(tl.arange(0, 4)[:, None, None] == 0" in made.compiled.forward.source


def test_warps_wait_for_each_other_where_parts_are_added_up_and_nowhere_else():
    compiled = loop_of("memory_augmented_transformer").at(1).compiled
    assert compiled.plan.divided == 64
    for text in (compiled.forward.source, compiled.backward.source):
        assert len(re.findall(r"tl\.(sum|max)\([^\n]*, 0, keep_dims=True\)", text)) == 1
    writers = re.findall(r"\[:, None, None\] == (\d)\)", compiled.forward.source)
    assert {*writers} == {"0", "1", "2", "3"}, "they take turns"


def test_a_chip_with_less_memory_has_kernels_that_need_less(monkeypatch):
    """Every warp has weights of its own there."""
    layer = MemoryAugmentedTransformer(3, 2, backend="fused")
    layer(inputs(layer)[0])
    loop = the_loop()
    tensors = [torch.empty(0), torch.empty(1, 3, 5, 128)]
    monkeypatch.setattr(loop, "counts", (1, 1, 0))
    monkeypatch.setattr(Kernels, "fit", lambda self, device, signature: not self.plan.divided)
    found = loop.of(tensors)
    assert isinstance(found, Kernels) and not found.plan.divided and found.plan.rows == 1
