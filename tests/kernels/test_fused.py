"""Every cell as a kernel, in Triton's interpreter, against autograd in float64: every output and every gradient."""

from __future__ import annotations

import copy
import dataclasses
import logging
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_helpers import (
    CELLS,
    STEPS,
    STEPS_OF_OTHERS,
    Last,
    Own,
    assert_near,
    check_last,
    check_without_gradients,
    inputs,
    make,
    reference,
    train,
)
from sm90 import MANY, loop_of
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nnarena.kernels import recurrence
from nnarena.kernels.compiler import plan
from nnarena.kernels.compiler.index import Affine, Axis, Factor, Straddle, cut, reshape
from nnarena.kernels.compiler.tiles import Ref, Tile
from nnarena.kernels.compiler.trace import CannotCompile
from nnarena.kernels.gpu import gemm, runtime
from nnarena.kernels.gpu.gemm import divide, product_and_sum_over_steps, product_over_steps, shares
from nnarena.kernels.gpu.parts import added_up
from nnarena.kernels.gpu.runtime import Loop
from nnarena.kernels.gpu.schedule import ahead
from nnarena.nn import DNC, MemoryAugmentedTransformer

# padding may hold anything: it is masked where it would count
pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered", "ignore:divide by zero", "ignore:overflow encountered"
)


@pytest.fixture(params=["one sample a program", "a block of samples", "a block, many weights"])
def mapping(request, monkeypatch):
    """All ways of laying samples out, whatever the sizes would suggest."""
    block = request.param != "one sample a program"
    many = 0 if block else 1 << 30
    for name in ("SINGLE", "MANY", "VERY_MANY", *(["HEAVY"] if request.param.endswith("weights") else [])):
        monkeypatch.setattr(plan, name, many)
    monkeypatch.setattr(recurrence, "_loops", {})
    return 18 if block else 3  # more than a block of sixteen, and not a whole one


ALONE = ("dnc", "attention_split gated", "attention_split dot_product")  # matrices of a sample meet: a program each


@pytest.mark.parametrize("name", CELLS)
def test_a_kernel_gives_what_autograd_gives(name, mapping):
    layer = make(name)
    given = inputs(layer, 3 if name in ALONE else mapping)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    # the memory cell has slopes of 100: what float32 loses is a hundred times as much
    tolerance = 1e-3 if name == "memory_cell" else 2e-5
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}", tolerance)
    assert gradients.keys() == slopes.keys()
    for part in slopes:
        assert_near(gradients[part], slopes[part], part, tolerance)
    plans = {kernel_plan.rows for loop in recurrence._loops.values() if loop for kernel_plan in loop.kernels}
    # four rows a sample of the memory transformer: sixteen of them are 64
    assert (16 in plans) == (mapping > 3 and name not in ALONE)


@pytest.mark.parametrize("name", CELLS)
def test_without_gradients_the_numbers_are_the_same(name):
    check_without_gradients(make(name), 1)


@pytest.mark.parametrize("name", CELLS)
def test_the_last_output_may_be_all_that_is_wanted(name):
    check_last(make(name), 2e-3 if name == "memory_cell" else 2e-5)


def test_a_population_is_asked_for_its_last_outputs():
    layers = [make("ct_rnn", seed) for seed in (0, 1)]
    x = inputs(layers[0], 2)[0]
    weights, _ = stack_module_state([Last(layer) for layer in layers])
    found = torch.vmap(lambda weights: functional_call(Last(layers[0]), weights, (x,))[0])(weights)
    gradients = torch.autograd.grad(found.sin().sum(), list(weights.values()))
    for seed, layer in enumerate(layers):
        last = layer(x)[0][:, -1]
        torch.testing.assert_close(found[seed], last)
        alone = torch.autograd.grad(last.sin().sum(), list(layer.parameters()))
        for ours, wanted in zip(gradients, alone, strict=True):
            torch.testing.assert_close(ours[seed], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CELLS)
def test_a_population_is_its_members(name):
    """`torch.vmap` folds seeds into the kernel's grid: each member's numbers are those it gets alone."""
    layers = [make(name, seed) for seed in (0, 1)]
    given = [inputs(layer, batch=1 if name in ALONE else 2, seed=seed) for seed, layer in enumerate(layers)]
    alone = [train(layer, dict(layer.named_parameters()), *one) for layer, one in zip(layers, given, strict=True)]
    weights, buffers = stack_module_state(layers)
    weights = {key: value.detach().requires_grad_() for key, value in weights.items()}
    x = torch.stack([one[0] for one in given])
    spans = None if given[0][1] is None else torch.stack([one[1] for one in given])
    state = pytree.tree_map(lambda *parts: torch.stack(parts), *(one[2] for one in given))

    def call(weights, buffers, x, state, spans):
        args = (x, state) if spans is None else (x, state, spans)
        output, last = functional_call(layers[0], {**weights, **buffers}, args)
        return output, *pytree.tree_leaves(last)

    results = torch.vmap(call, in_dims=(0, 0, 0, 0, None if spans is None else 0))(weights, buffers, x, state, spans)
    total = x.new_zeros(())
    for place, part in enumerate(results):
        numbers = torch.arange(part[0].numel(), dtype=torch.float64).add(place).cos().view(part[0].shape)
        total = total + (part * numbers.to(part)).sum()
    gradients = dict(zip(weights, torch.autograd.grad(total, list(weights.values()), allow_unused=True), strict=True))
    for member, (own_results, own_gradients) in enumerate(alone):
        for part, own in zip(results, own_results, strict=True):
            assert_near(part[member], own.double(), "result", 1e-6)
        for key, gradient in gradients.items():
            gradient = torch.zeros_like(weights[key]) if gradient is None else gradient
            assert_near(gradient[member], own_gradients[key].double(), key, 1e-5)


def test_what_is_compared_is_the_same_on_the_way_back(monkeypatch):
    """Slots of a fresh memory are equals; a GPU rounds the same sum differently in two kernels."""
    from triton.runtime import interpreter

    numbers, exactly = np.random.default_rng(0), interpreter.InterpreterBuilder.create_fadd

    def roughly(self, one, other):
        total = exactly(self, one, other)
        rounded = total.data * (1 + 6e-8 * numbers.standard_normal(total.data.shape))
        return interpreter.TensorHandle(rounded.astype(total.data.dtype), total.dtype)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fadd", roughly)
    torch.manual_seed(0)
    layer = DNC(3, 2, hidden_size=8, slots=8, width=4, reads=2, backend="fused")
    exact = copy.deepcopy(layer).double()
    exact.backend = "eager"
    x = torch.randn(2, 8, 3)
    found = torch.autograd.grad(layer(x)[0].sin().sum(), list(layer.parameters()))
    wanted = torch.autograd.grad(exact(x.double())[0].sin().sum(), list(exact.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        assert_near(ours, theirs, "gradient", 2e-6)


def test_threads_agree_on_what_is_compared():
    """Else a thread might find a slot's own copy in another one smaller than its own."""
    compiled = compiled_loop(make("dnc")).at(1).compiled
    assert all("agreed(" in text.source.split("def ")[1] for text in (compiled.forward, compiled.inference))
    assert "agreed(" not in compiled.backward.source.split("def ")[1]  # which reads what the way forward kept


class Zeros(TorchDispatchMode):
    """Notes the sizes of all tensors that are filled with zeros."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.__name__.split(".")[0] in ("zeros", "zeros_like", "new_zeros", "zero_"):
            self.shapes.append(tuple(result.shape))
        return result


@pytest.mark.parametrize("used", ["output", "state", "both"])
def test_only_what_was_used_has_a_gradient(used):
    """Of what is not used, neither the output nor the state nor what is kept for the way back, none is wanted."""
    layer = make("lstm")
    x, _, state = inputs(layer)

    def loss(layer, x, state):
        output, (h, c) = layer(x, state)
        return (output.sin().sum() if used != "state" else 0) + (h.sum() + c.cos().sum() if used != "output" else 0)

    total = loss(layer, x, state)
    with Zeros() as zeros:
        found = torch.autograd.grad(total, list(layer.parameters()))
    batch, hidden = x.shape[0], layer.hidden_size
    unused = {"output": [(1, batch, hidden)], "state": [(1, batch, STEPS, hidden)], "both": []}
    assert zeros.shapes == unused[used]
    exact = copy.deepcopy(layer).double()
    exact.backend = "eager"
    wanted = torch.autograd.grad(
        loss(exact, x.double(), tuple(part.double() for part in state)), list(exact.parameters())
    )
    for ours, theirs in zip(found, wanted, strict=True):
        assert_near(ours, theirs, used, 2e-5)


def test_the_same_call_gives_the_same_bits():
    layer = make("lstm")
    given = inputs(layer)
    _, once = train(layer, dict(layer.named_parameters()), *given)
    _, again = train(layer, dict(layer.named_parameters()), *given)
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.parametrize("name", STEPS_OF_OTHERS)
def test_a_cell_that_somebody_brings(name, monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    torch.manual_seed(0)

    class Theirs(Own):
        step = staticmethod(STEPS_OF_OTHERS[name])

    layer = Theirs()
    given = inputs(layer)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    assert any(isinstance(made, Loop) for made in recurrence._loops.values()), list(recurrence._loops.values())
    exact, slopes = reference(layer, *given)
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, "own")


def test_products_of_the_input_alone_leave_the_loop(monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    torch.manual_seed(0)
    layer = Own()
    layer(inputs(layer)[0])
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    assert loop.signature.inputs == ((6,),), "u @ exp(W), six numbers, comes in instead of the three of u"
    # in a population, and where nobody wants gradients, too
    recurrence._loops.clear()
    weights, _ = stack_module_state([layer, layer])
    x = inputs(layer)[0]
    torch.vmap(lambda weights: functional_call(layer, weights, (x,))[0])(weights)
    with torch.inference_mode():
        layer(x)
    loops = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    assert loops and all(loop.signature.inputs == ((6,),) for loop in loops)
    # a cell that has its own project() is left as it is
    recurrence._loops.clear()
    known = make("lstm")
    known(inputs(known)[0])
    assert [made for made in recurrence._loops.values() if made is None] == [None]


def test_a_step_whose_gradients_cannot_be_looked_at_stays_as_it_is(monkeypatch):
    """It may not be able to compute with whatever numbers."""
    monkeypatch.setattr(recurrence, "_loops", {})

    def broken(*_, **how):
        raise ValueError("not with these")

    monkeypatch.setattr(torch.func, "grad", broken)
    layer = Own()
    layer(inputs(layer)[0])
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    assert loop.signature.inputs == ((3,),)


def test_gates_are_saved_with_what_the_input_adds_to_them(monkeypatch):
    """Of what a GRU reads, its way back needs the third that belongs to the proposal, and of its product all of it."""
    monkeypatch.setattr(recurrence, "_loops", {})
    layer = make("gru")
    layer(inputs(layer)[0])
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    units, compiled = layer.hidden_size, loop.at(1).compiled
    reads = [line for line in compiled.backward.source.splitlines() if "load(u0 " in line]
    assert reads and all(f"* {3 * units} + {2 * units} " in line for line in reads)
    assert compiled.shapes["saved0"] == (3 * units,)


def test_what_is_computed_twice_from_the_same_is_computed_once():
    """A norm's mean and its variance each ask for the sum of what is normed."""
    source = compiled_loop(make("memory_transformer")).at(1).compiled.backward.source
    numbers = [line.strip().partition(" = ") for line in source.splitlines() if re.match(r"\s+v\d+ = ", line)]
    same: dict[str, str] = {}
    for name, _, text in numbers:
        text = re.sub(r"\bv\d+\b", lambda found: same.get(found[0], found[0]), text)
        assert text not in same, f"{name} is what {same.get(text)} is: {text}"
        same[text] = name


@pytest.mark.parametrize("batch", [4, 6])
def test_blocks_of_matrices_may_all_be_whole(batch, monkeypatch):
    """Then nothing is written on a condition."""
    monkeypatch.setattr(plan, "SINGLE", 1)
    monkeypatch.setattr(recurrence, "_loops", {})
    torch.manual_seed(0)
    layer = MemoryAugmentedTransformer(2, 1, rows=16, columns=3, d_model=6, dim_feedforward=5, backend="fused")
    given = inputs(layer, batch, steps=2)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    (made,) = [made for chosen, made in loop.kernels.items() if chosen.knows_whole]
    assert made.plan.rows == 4 and "| whole" in made.compiled.forward.source
    exact, slopes = reference(layer, *given)
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, "whole")


def test_what_products_with_matrices_read_is_kept_once():
    """Gradients of weights need it, and so the way back reads it there instead of making it again."""
    layer = MemoryAugmentedTransformer(3, 2, rows=4, columns=5, d_model=16, dim_feedforward=20, backend="fused")
    compiled = compiled_loop(layer).at(1).compiled
    backward = compiled.backward.source.partition("def backward")[2]
    assert "exp(" not in backward and "sqrt(" not in backward  # shares and norms are what they were
    tokens, heads, width = layer.rows, 2, layer.d_model
    seen = (tokens, heads * (layer.columns + tokens))  # p M and p side by side: one memory, one side of one product
    (name,) = (name for name, shape in compiled.shapes.items() if shape == seen and name.startswith("saved"))
    assert name in compiled.backward.arguments
    places = [place for gemm in compiled.gemms for place in (gemm.left, gemm.right)]
    assert [place.name for place in places].count(name) == 1
    # of gradients that are the same numbers, one has them among others that it is written with
    (whole,) = {place for place in places if compiled.shapes[place.name] == (tokens, heads * (5 + tokens) + width)} - {
        part := next(place for place in places if place.pitch > place.start > 0)
    }
    assert part.name == whole.name and part.pitch == compiled.shapes[whole.name][-1]


def test_what_a_step_was_given_is_no_output_of_its_own():
    compiled = compiled_loop(make("memory_transformer")).at(1).compiled
    assert (compiled.output, compiled.output_shift) == ("hist0", 0)
    assert "output" not in {*compiled.forward.arguments, *compiled.inference.arguments}


@pytest.mark.parametrize(("rows", "also"), [(4, False), (4, True), (16, False), (16, True), (17, False)])
def test_sums_for_every_row_come_with_a_product(rows, also, monkeypatch):
    """A bias that is another one for every row of a sample; and one that is not, of the same product."""
    monkeypatch.setattr(recurrence, "_loops", {})
    torch.manual_seed(0)

    class Rows(Own):
        def __init__(self):
            super().__init__()
            self.rows = nn.Parameter(torch.randn(rows, 5) / 3)
            self.all = nn.Parameter(torch.randn(5) / 3)
            self.M = nn.Parameter(torch.randn(5, 5) / 3)

        def initial_state(self, batch, like):
            return like.new_zeros(batch, rows, 5)

        def constants(self):
            return self.W, self.M, self.rows, self.all

        @staticmethod
        def step(constants, u, state):
            W, M, by_row, for_all = constants
            made = state @ M + by_row
            state = (made + for_all if also else made + (u @ W)[:, None, :5]).tanh()
            return state, state

    layer = Rows()
    given = inputs(layer)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, "rows")
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    by_row = [each for each in loop.at(3).after.sums if each.by_row]
    assert bool(by_row) == (rows <= gemm.MOST_FEW)


def test_what_is_read_late_may_be_written_as_it_is():
    """The gradient of an input that is an output as well: nothing is computed of what is read."""
    axis = Axis(8)
    written, used = Tile("load", (), (axis,)), Tile("load", (), (axis,))
    twice = Tile("map", (Ref(used, (axis,)), 2.0), (axis,), "mul")
    moving, placed = ahead([written, used, twice], room=0, again={written, used})
    assert not moving and placed == {twice: [written, used]}


def test_what_cannot_be_compiled_runs_eagerly_and_says_why(caplog, monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    recurrence._tell.cache_clear()

    class Looks(Own):
        @staticmethod
        def step(constants, u, state):
            state = state + 1 if bool(u.sum() > 0) else state - 1
            return state, state

    layer = Looks()
    x, _, state = inputs(layer)
    with caplog.at_level(logging.WARNING, "nnarena.kernels"):
        output, _ = layer(x, state)
        layer(x, state)
    layer.backend = "eager"
    assert torch.equal(output, layer(x, state)[0])
    (line,) = [record.getMessage() for record in caplog.records]
    assert "Looks.step" in line and "eagerly" in line and "cannot be traced" in line


def test_double_precision_is_left_to_the_eager_loop(monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    layer = make("gru").double()
    with pytest.raises(CannotCompile, match="float32 only"):
        recurrence.fused(layer.step, layer.constants(), torch.zeros(2, 3, 51).double(), torch.zeros(2, 17).double())
    assert layer(torch.zeros(2, 3, 3).double())[0].dtype == torch.float64


def test_a_second_derivative_is_refused():
    layer = make("lstm")
    x = inputs(layer)[0].requires_grad_()
    (slope,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        slope.sum().backward()


PRODUCTS = [
    (2, 6, 5, 1, 3, 4), (1, 9, 70, 3, 64, 80), (2, 40, 7, 2, 33, 130), (1, 70, 9, 1, 20, 9),
    (2, 1, 90, 1, 150, 2), (1, 35, 6, 1, 3, 40), (2, 3, 4, 2, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
@pytest.mark.parametrize("history", [False, True], ids=["alone", "with a step more"])
@pytest.mark.parametrize("processors", [1, 132])
def test_a_product_over_samples_and_steps(sizes, history, processors, monkeypatch):
    monkeypatch.setattr(gemm, "PROCESSORS", processors)
    S, B, T, rows, K, N = sizes
    left, right = torch.randn(S, B, T + history, rows, K)[:, :, :T], torch.randn(S, B, T, rows, N)
    wanted = torch.einsum("sbtrk,sbtrn->skn", left.double(), right.double())
    assert_near(product_over_steps(left, right, "bf16x6"), wanted, "product", 1e-6)
    product, total = product_and_sum_over_steps(left, right, "bf16x6")
    assert_near(product, wanted, "product", 1e-6)
    assert_near(total, left.double().sum((1, 2, 3)), "sum", 1e-6)
    assert product.is_contiguous() and total.is_contiguous()


@pytest.mark.parametrize("shape", [(1, 7), (2, 3, 5), (264, 2, 700), (1100, 33)], ids=str)
def test_parts_are_added_up(shape):
    parts = torch.randn(shape)
    total = added_up(parts)
    assert_near(total, parts.double().sum(0), "sum", 1e-06)
    assert torch.equal(total, added_up(parts)), "always in the same order"


@given(st.integers(1, 5000), st.integers(0, 600))
def test_every_part_of_a_product_has_something_to_add_up(pieces, most):
    parts, share = shares(pieces, most)
    assert (parts - 1) * share < pieces <= parts * share and parts <= max(1, most)


@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from([16, 32]), st.integers(0, 600))
def test_every_row_belongs_to_one_program(batch, length, depth, most):
    work = divide(batch, length, depth, most)
    blocks, places = (-(-batch // depth), length) if work.by_sample else (batch, -(-length // depth))
    groups, parts = -(-blocks // work.blocks), -(-places // work.places)
    assert groups * parts == work.programs <= max(1, most)


def test_rows_of_a_sample_are_read_together():
    assert divide(128, 100, 32, 16).by_sample and divide(128, 1600, 32, 16).by_sample
    assert not divide(128, 1600, 32, 16, rows=16).by_sample, "these lie side by side"
    assert divide(128, 12, 32, 16, rows=4).by_sample, "but a piece of 32 would be empty for the most part"


def test_products_that_four_warps_wait_for_are_one_where_they_can_be():
    """What a row of the memory transformer asks is four matrices beside each other, and what it gets four below."""
    compiled = loop_of("memory_augmented_transformer").at(MANY).compiled
    forward, backward = compiled.forward.source, compiled.backward.source
    for source in (forward, backward):
        assert len(re.findall(r"= quartered\(added\(begun\(", source)) == 1
        assert len(re.findall(r"begun\(beside\(beside\(", source)) == 1
    assert "continued(" not in forward, "all that a row gets is one product"
    alone = loop_of("memory_augmented_transformer").at(1).compiled
    assert "quartered(added" not in alone.forward.source, "there no warp waits for three others"


def test_another_plan_is_the_same_loop():
    loop = compiled_loop(make("lstm"))
    plan = loop.at(1).plan
    before = loop.kernels[plan].compiled
    loop.replan(save=10_000, warps=8)
    after = loop.at(1).compiled
    assert after.plan == dataclasses.replace(plan, save=10_000, warps=8) and after.backward.warps == 8
    assert "saved0" in before.forward.arguments and "saved0" not in after.forward.arguments


def test_products_are_as_good_as_float32_unless_torch_is_told_otherwise():
    loop = compiled_loop(make("lstm"))
    assert runtime.precision_on(torch.device("cpu")) == "bf16x6" and loop.at(5000).plan.precision == "bf16x6"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert runtime.precision_on(torch.device("cpu")) == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)
    assert loop.at(5000, "tf32").plan.rows == 16 and loop.at(5000, "ieee").plan.rows == 1


@pytest.mark.parametrize(
    ("tokens", "few", "many"),
    [(3, (4, 4), (16, 4)), (16, (1, 4), (4, 4)), (500, (1, 8), (1, 8))],
)
def test_a_block_is_so_many_samples_as_have_rows_for_its_warps(tokens, few, many):
    loop = compiled_loop(
        MemoryAugmentedTransformer(2, 1, rows=tokens, columns=2, d_model=2, dim_feedforward=2, backend="fused")
    )
    for sequences, wanted in ((1, few), (plan.SINGLE + 1, many)):
        made = plan.make_plan(loop.traced, loop.signature, sequences)
        assert (made.rows, made.warps) == wanted and made.matrices


def test_a_sample_that_is_a_matrix_may_have_a_program_of_its_own():
    layer = MemoryAugmentedTransformer(2, 1, rows=11, columns=3, d_model=6, dim_feedforward=5, backend="fused")
    given = inputs(layer, 2)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    assert {made.rows for made in compiled_loop(layer).kernels} == {1}
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, "result", 2e-5)


def test_matrices_announce_what_they_read_on_the_way_back_where_each_has_a_processor(monkeypatch):
    """There no other block works while one waits for memory."""
    monkeypatch.setattr(recurrence, "_loops", {})
    monkeypatch.setattr(plan, "SINGLE", 1)
    torch.manual_seed(0)
    layer = MemoryAugmentedTransformer(2, 1, rows=11, columns=3, d_model=6, dim_feedforward=5, backend="fused")
    given = inputs(layer, 3)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    for sequences, rows in ((1, 1), (3, 4)):
        compiled = loop.at(sequences).compiled
        assert compiled.plan.rows == rows and "kept(" not in compiled.forward.source
        assert "expect(" in compiled.forward.source
        assert ("expect(" in compiled.backward.source) == (rows == 1)
    exact, slopes = reference(layer, *given)
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, "result", 2e-5)


def compiled_loop(layer):
    recurrence._loops.clear()
    layer(inputs(layer)[0])
    return next(made for made in recurrence._loops.values() if isinstance(made, Loop))


def test_a_view_is_another_place_to_read():
    i, j = Axis(4), Axis(3)
    # x is (2, 6), seen as (4, 3): row i, column j is element 3 i + j of twelve, so x[i // 2, 3 (i % 2) + j]
    with pytest.raises(Factor) as factor:
        reshape((Affine(0, ((i, 1),)), Affine(0, ((j, 1),))), (4, 3), (2, 6))
    assert factor.value.axis is i and factor.value.inner == 2
    a, b = Axis(2), Axis(2)
    row, column = reshape((Affine(0, ((a, 2), (b, 1))), Affine(0, ((j, 1),))), (4, 3), (2, 6))
    assert row.terms == ((a, 1),) and set(column.terms) == {(b, 3), (j, 1)} and row.offset == column.offset == 0


def test_a_seam_cuts_the_axis_that_runs_over_it():
    axis = Axis(10)
    with pytest.raises(Straddle) as seam:
        cut(Affine(2, ((axis, 1),)), 5)
    assert seam.value.axis is axis and seam.value.at == 3
    cut(Affine(5, ((axis, 1),)), 5)
