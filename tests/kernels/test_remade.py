"""Gradients whose factors are made again after the loops, in Triton's interpreter, against autograd in float64."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_helpers import FEEDS, Fed, assert_near, inputs, make, reference, train
from sm90 import MANY, loop_of
from torch.func import functional_call, stack_module_state

from nnarena.kernels import recurrence
from nnarena.kernels.compiler import plan
from nnarena.kernels.compiler.remade import groups, shares
from nnarena.kernels.gpu import after, runtime
from nnarena.kernels.gpu.runtime import Loop
from nnarena.nn import MemoryAugmentedTransformer

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered", "ignore:divide by zero", "ignore:overflow encountered"
)


AGAIN = (
    "relu",
    "relu, added to",
    "relu of a linear layer",
    "relu, and its mean, not learned",
    "relu, with a bias for every row",
    "no relu",
)


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Blocks of samples for a few sequences, too."""
    monkeypatch.setattr(plan, "SINGLE", 1)
    monkeypatch.setattr(recurrence, "_loops", {})


def the_loop():
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    return loop


@pytest.mark.parametrize("steps", [1, 5, 19])
@pytest.mark.parametrize("feed", FEEDS)
def test_gradients_are_those_of_autograd(feed, steps):
    """Of a block that is not a whole one, from another state than zero, through the last state; the steps of several
    programs."""
    torch.manual_seed(0)
    layer = Fed(FEEDS[feed])
    given = inputs(layer, 18, steps)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    compiled = the_loop().at(18).compiled
    assert bool(compiled.sums) == (feed in AGAIN), "of others, not less would be written"
    for part, wanted in zip(results, exact, strict=True):
        assert_near(part, wanted, "result")
    for part in slopes:
        assert_near(gradients[part], slopes[part], part)


def test_a_population_is_its_members():
    layers = [MemoryAugmentedTransformer(3, 2, rows=4, columns=5, d_model=16, backend="fused") for _ in range(2)]
    given = [inputs(layer, 5, 17, seed) for seed, layer in enumerate(layers)]
    weights, buffers = stack_module_state(layers)
    x, state = torch.stack([one[0] for one in given]), torch.stack([one[2] for one in given])

    def call(weights, buffers, x, state):
        output, last = functional_call(layers[0], (weights, buffers), (x, state))
        return output.sin().sum() + last.cos().sum()

    total = torch.vmap(call)(weights, buffers, x, state).sum()
    found = torch.autograd.grad(total, list(weights.values()))
    assert the_loop().at(10).compiled.sums
    for member, layer in enumerate(layers):
        exact = MemoryAugmentedTransformer(3, 2, rows=4, columns=5, d_model=16, backend="eager").double()
        exact.load_state_dict(layer.state_dict())
        output, last = exact(given[member][0].double(), given[member][2].double())
        slopes = torch.autograd.grad(output.sin().sum() + last.cos().sum(), list(exact.parameters()))
        for name, ours, wanted in zip(weights, found, slopes, strict=True):
            assert_near(ours[member], wanted, name)


def test_programs_share_steps_only_where_there_are_few(monkeypatch):
    layer = make("memory_transformer")
    seen = []
    monkeypatch.setattr(runtime, "launch", lambda kernel, grid, *rest, **how: seen.append(grid))
    monkeypatch.setattr(after.After, "gradients", lambda self, memory: iter(()))  # of what no kernel has computed
    for steps, most, parts in ((19, 528, 2), (19, 1, 1), (7, 528, 1)):
        monkeypatch.setattr(runtime, "SHARES", most)
        output, _ = layer(inputs(layer, 18, steps)[0])
        seen.clear()
        output.sum().backward()
        sums = [grid[2] for grid in seen if len(grid) == 3][1:]  # after the loop back
        assert sums and set(sums) == {parts}


def test_what_is_wide_is_not_written():
    """The units between the layers of the memory transformer, 128 for 32, and their gradients."""
    loop = loop_of("memory_augmented_transformer")
    (group,) = (group for group in groups(loop.traced) if not group.by_sample)
    assert len(group.places) == 5 and len(group.origins) == 2, "weights, biases, and the scale of the norm"
    compiled = loop.at(MANY).compiled
    before = Loop.at(loop, 1).compiled  # a sample with a processor of its own has time to write
    sizes = {
        name: math.prod(compiled.shapes[name]) for name in {*compiled.forward.arguments, *compiled.backward.arguments}
    }
    written = {name: size for name, size in sizes.items() if name.startswith(("saved", "terms", "right", "left"))}
    assert max(written.values()) <= 16 * 96 and sizes["signs0"] == 16 * 128
    assert not before.sums and max(math.prod(shape) for shape in before.shapes.values()) > 16 * 96
    assert runtime._written_type("signs0") == torch.int8 and runtime._written_type("saved0") == torch.float32


def test_a_kernel_adds_up_what_is_made_of_the_same_products():
    loop = loop_of("memory_augmented_transformer")
    texts = [text.source for text in loop.at(MANY).compiled.sums if "weighted_in_halves(" in text.source]
    assert len(texts) == 2, "one for each half of the units"
    assert all(text.count(" across_in_halves(") + text.count("(across_in_halves(") == 2 for text in texts), (
        "both weights"
    )
    assert all(text.count("weighted_in_halves(") == 2 for text in texts)
    assert all(text.count("size_of_weighted(") == 2 and "size_of_columns(" not in text for text in texts), "known"
    for text in texts:  # weights are split once, before the loop; what is read, once for both products
        begin, loop = text.partition("for step in")[::2]
        assert begin.count("scaled_halves(") == loop.count("scaled_halves(") == 2
    (tf32,) = {
        text.source.count("halves") for text in loop_of("memory_augmented_transformer").at(MANY, "tf32").compiled.sums
    }
    assert tf32 == 0, "who wants less has one product"
    assert "begin + own" in texts[0] and shares([], plan.Plan()) == [[]]


def test_what_matrices_of_a_sample_make_of_each_other_is_added_up_by_a_warp_with_one():
    """What a row asks and gets, and the weights that write the memory: p M and its like are made again."""
    loop = loop_of("memory_augmented_transformer")
    met, small = (group for group in groups(loop.traced) if group.by_sample)
    assert not met.small and len(met.places) == 3 and [len(node.meta["val"].shape) for node in met.origins] == [3] * 5
    assert small.small and len(small.places) == 2, "a weight and its bias"
    compiled = loop.at(MANY).compiled
    assert not compiled.gemms and not compiled.totals, "nothing else is left"
    texts = [text.source for text in compiled.sums if "halves(" not in text.source.partition("def sums")[2]]
    assert len(texts) == 3, "what asks, what gets, and what writes"
    for text in texts:  # a product of every sample; what it reads lies as it is wanted
        inside = text.partition("for step in")[2]
        assert "tl.reshape(" not in inside and "tl.debug_barrier" not in inside
        assert all(
            "(4, 16, 16)" in line or "(4, 32, 16)" in line or "around(" in line or "like_" in line
            for line in inside.splitlines()
            if "fetch" in line
        )
    assert max(text.count("sum0") for text in texts) and not any("across(" in text for text in texts)
    tf32 = loop.at(MANY, "tf32").compiled
    assert len(tf32.sums) == len(compiled.sums)
