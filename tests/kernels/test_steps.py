"""Loops whose steps are compiled one by one: against autograd in float64, in a population, and when they are taken."""

from __future__ import annotations

import logging

import pytest
import torch
from kernel_helpers import Last, assert_near, inputs, make, reference, train
from torch.func import functional_call, stack_module_state

from nnarena.kernels import recurrence, toolchain
from nnarena.kernels.gpu.runtime import Loop
from nnarena.kernels.steps import Steps
from nnarena.nn import LSTM, Recurrent

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="there is no C++ compiler")


class Cumulative(Recurrent):
    """A step with an operation that no kernel of ours has."""

    def __init__(self):
        super().__init__(2, 3, backend="fused")
        self.weight = torch.nn.Parameter(torch.randn(3, 3) / 2)

    def initial_state(self, batch, like):
        return like.new_zeros(batch, 3)

    def constants(self):
        return (self.weight,)

    def project(self, constants, x, timespans):
        return torch.cat([x, x[..., :1]], -1)

    @staticmethod
    def step(constants, u, state):
        state = (u + state @ constants[0]).tanh().cumprod(-1)
        return state, state


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})


@pytest.fixture
def stepwise(monkeypatch):
    """Every loop takes its steps one by one."""
    monkeypatch.setattr(Loop, "of", lambda loop, tensors: loop.steps)


@pytest.mark.parametrize("name", ["lstm", "memory_transformer", "ct_rnn"])
def test_compiled_steps_give_what_autograd_gives(name, stepwise):
    layer = make(name)
    given = inputs(layer)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}")
    for part in slopes:
        assert_near(gradients[part], slopes[part], part)


def test_the_last_output_may_be_all_that_is_wanted(stepwise):
    layer = make("ct_rnn")
    given = inputs(layer)
    _, gradients = train(Last(layer), dict(Last(layer).named_parameters()), *given)
    _, slopes = reference(Last(layer, whole=True), *given)
    for part in slopes:
        assert_near(gradients[part], slopes[part], part)


def test_a_population_is_its_members(stepwise):
    layers = [LSTM(3, 4, backend="fused") for _ in range(2)]
    x = torch.randn(2, 5, 4, 3)
    weights, _ = stack_module_state(layers)
    outputs = torch.vmap(lambda weights, x: functional_call(layers[0], weights, (x,))[0])(weights, x)
    gradients = torch.autograd.grad(outputs.sin().sum(), list(weights.values()))
    for member, layer in enumerate(layers):
        layer.backend = "eager"
        output = layer(x[member])[0]
        torch.testing.assert_close(outputs[member], output)
        for ours, own in zip(gradients, torch.autograd.grad(output.sin().sum(), list(layer.parameters())), strict=True):
            torch.testing.assert_close(ours[member], own)


def test_what_cannot_be_one_kernel_is_several_and_says_why(caplog):
    layer = Cumulative()
    x = torch.randn(4, 5, 2)
    with caplog.at_level(logging.WARNING, "nnarena.kernels"):
        output, _ = layer(x)
    (slope,) = torch.autograd.grad(output.square().sum(), layer.parameters())
    layer.backend = "eager"
    plain, _ = layer(x)
    torch.testing.assert_close(output, plain)
    torch.testing.assert_close(slope, *torch.autograd.grad(plain.square().sum(), layer.parameters()))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "Cumulative.step" in line and "several kernels" in line and "cumprod" in line


def test_what_torch_cannot_compile_runs_eagerly(caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError("no registers left")

    monkeypatch.setattr("nnarena.kernels.steps.compile_for", fail)
    recurrence._tell.cache_clear()
    layer = Cumulative()
    x = torch.randn(4, 5, 2)
    with caplog.at_level(logging.WARNING, "nnarena.kernels"):
        output, _ = layer(x)
    layer.backend = "eager"
    assert torch.equal(output, layer(x)[0])
    assert "eagerly" in caplog.text and "no registers left" in caplog.text


def loop_of(layer):
    constants = layer.constants()
    x = torch.randn(2, 3, layer.input_size)
    recurrence._loops.clear()
    recurrence.fused(layer.step, constants, layer.project(constants, x, None), layer.initial_state(2, x))
    return next(made for made in recurrence._loops.values() if isinstance(made, Loop))


def test_steps_keep_the_states_between_them():
    assert Steps(lambda *_: ([], torch.zeros(())), loop_of(make("lstm")).signature).kept == ["hist0", "hist1"]
