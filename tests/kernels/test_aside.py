"""Vectors that are read in other parts than they are computed in: laid aside in memory, and read from there."""

from __future__ import annotations

import re

import pytest
import torch
from kernel_helpers import CELLS, assert_near, check_last, check_without_gradients, inputs, make, reference, train
from torch import nn
from torch.func import functional_call, stack_module_state

from nnarena.kernels import recurrence
from nnarena.kernels.compiler import plan
from nnarena.kernels.gpu.runtime import Loop, is_direct
from nnarena.nn import DNC, Recurrent

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered", "ignore:divide by zero", "ignore:overflow encountered"
)
FEW, MANY = 0, 1 << 30
WAYS = {  # the numbers of sequences up to which a sample has a processor, and a warp; samples a program, and its warps
    "a processor a sample": (MANY, MANY, 1, (8, 8)),
    "a warp a sample": (FEW, MANY, 1, (1, 1)),
    "a block of samples": (FEW, FEW, 16, (8, 8)),
}
SIZES = {"odd": CELLS["dnc"], "even": lambda **more: DNC(3, 2, hidden_size=16, slots=16, width=8, **more)}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    single, turn, *sizes = WAYS[request.param]
    for name, value in {"SINGLE": single, "ROUND": turn, "HEAVY": 0}.items():
        monkeypatch.setattr(plan, name, value)
    monkeypatch.setattr(recurrence, "_loops", {})
    return sizes


def loops():
    return [made for made in recurrence._loops.values() if isinstance(made, Loop)]


@pytest.mark.parametrize("size", SIZES)
def test_every_way_gives_what_autograd_gives(size, way):
    layer = make(size, cells=SIZES)
    rows, warps = way
    given = inputs(layer, rows + 2)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}", 2e-6)
    for part in slopes:
        assert_near(gradients[part], slopes[part], part, 5e-6)
    plans = [made for loop in loops() for made in loop.kernels]
    assert (rows, *warps) in [(made.rows, made.warps, made.way_back().warps) for made in plans]


def test_every_way_has_the_same_numbers_without_gradients(way):
    check_without_gradients(make("dnc"), 2)


def test_every_way_has_a_last_output(way):
    check_last(make("dnc"), 5e-6)


def test_a_population_is_its_members(way):
    layers = [make("dnc", seed) for seed in (0, 1)]
    x = inputs(layers[0], batch=2, steps=2)[0]
    alone = []
    for layer in layers:
        output = layer(x)[0]
        alone.append((output, torch.autograd.grad(output.sin().sum(), list(layer.parameters()))))
    weights, buffers = stack_module_state(layers)

    def call(weights, buffers):
        return functional_call(layers[0], {**weights, **buffers}, (x,))[0]

    outputs = torch.vmap(call)(weights, buffers)
    gradients = torch.autograd.grad(outputs.sin().sum(), list(weights.values()))
    for seed, (output, slopes) in enumerate(alone):
        torch.testing.assert_close(outputs[seed], output, rtol=1e-5, atol=1e-6)
        for name, ours, slope in zip(weights, gradients, slopes, strict=True):
            assert_near(ours[seed], slope.double(), name, 5e-6)


def texts(way):
    """The loops of the kernels that a way has."""
    layer = make("even", cells=SIZES)
    train(layer, dict(layer.named_parameters()), *inputs(layer, way[0] + 2))
    compiled = next(made.compiled for loop in loops() for chosen, made in loop.kernels.items() if chosen.rows == way[0])
    sources = {name: getattr(compiled, name).source for name in ("forward", "inference", "backward")}
    return {name: source.split("    for step in range(")[1].splitlines() for name, source in sources.items()}


def test_whoever_reads_what_others_wrote_has_waited_for_them(way):
    """A step begins with what the step before it wrote."""
    picked = 0
    for lines in texts(way).values():
        unsure = {match[1] for line in lines if (match := re.search(r"(?:tl\.store|put)\((\w+) ", line))}
        for line in lines:
            if "tl.debug_barrier()" in line:
                unsure.clear()
            elif match := re.search(r"(?:tl\.store|put)\((\w+) ", line):
                unsure.add(match[1])
            elif (match := re.search(r"(?:tl\.load|fetch)\((\w+) ", line)) and "next_" not in line:
                assert match[1] not in unsure, line
                picked += match[1].startswith(("aside", "hist", "saved"))
    assert picked >= 12  # parts of what a controller asks for


def test_a_vector_is_computed_once(way):
    """The controller's wishes are 53 numbers in ten parts: what each is made of is read once, if it is read whole."""
    lines = texts(way)["forward"]
    weights = [line for line in lines if re.search(r"(tl\.load|kept)\(c4t? ", line)]
    assert len(weights) <= 4  # pieces of 16 by 53 numbers; none, where they are held
    assert not any("agreed(" in line for line in lines), "what is compared lies in memory"


class Joined(Recurrent):
    """A cell of somebody's whose matrices meet, and whose weights meet an input, a state and a sum side by side."""

    def __init__(self):
        super().__init__(3, 4, backend="fused")
        self.W = nn.Parameter(torch.randn(3 + 12 + 4, 12) / 3)

    def initial_state(self, batch, like):
        return like.new_zeros(batch, 12), like.new_zeros(batch, 4, 4)

    def constants(self):
        return (self.W,)

    @staticmethod
    def step(constants, u, state):
        h, links = state
        seen = torch.bmm(h[:, None, :4], links)[:, 0]
        h = (torch.cat([u, h, seen], 1) @ constants[0]).tanh()
        return (h, (links + torch.bmm(h[:, :4, None], h[:, None, 4:8])).tanh()), h[:, :4] + seen


def test_what_is_not_computed_is_not_laid_aside(way):
    torch.manual_seed(0)
    layer = Joined()
    given = inputs(layer, way[0] + 2)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, "joined", 5e-6)
    (loop,) = loops()
    assert not any("aside" in name for made in loop.kernels.values() for name in made.compiled.forward.arguments)
    assert {made.aside for made in loop.kernels} == {True}


def test_a_block_has_no_room_for_large_matrices(monkeypatch):
    monkeypatch.setattr(plan, "HEAVY", 0)
    for slots, rows in ((16, 16), (17, 1)):
        monkeypatch.setattr(recurrence, "_loops", {})
        layer = DNC(2, 1, hidden_size=4, slots=slots, width=2, backend="fused")
        layer(torch.zeros(1, 2, 2))
        (loop,) = loops()
        assert plan.make_plan(loop.traced, loop.signature, plan.ROUND + 1).rows == rows


@pytest.mark.parametrize(
    ("layout", "direct"),
    [
        ("#mma", True),
        ("#ttg.slice<{dim = 1, parent = #mma}>", False),
        ("#pairs", True),
        ("#turned", False),
    ],
)
def test_pairs_are_two_numbers_of_one_thread(layout, direct):
    code = f"""
#mma = #ttg.nvidia_mma<{{versionMajor = 2, warpsPerCTA = [1, 8]}}>
#pairs = #ttg.blocked<{{sizePerThread = [1, 4], threadsPerWarp = [2, 16], order = [1, 0]}}>
#turned = #ttg.blocked<{{sizePerThread = [4, 1], threadsPerWarp = [2, 16], order = [0, 1]}}>
    %0 = tt.elementwise_inline_asm "ld.global.v2.f32" %p : tensor<16x64xi64, {layout}> -> tensor<16x64xf32, {layout}>
"""
    assert is_direct(code) is direct
