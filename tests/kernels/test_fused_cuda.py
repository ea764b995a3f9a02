"""Every cell as a kernel on a GPU, at its published size and at odd ones, against autograd in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from kernel_helpers import CELLS, FEEDS, Fed, Last, assert_near, inputs, make, reference, train
from torch.func import functional_call, stack_module_state
from torch.utils import _pytree as pytree

from nnarena.bench.recurrence import build, make_task
from nnarena.core.components import catalogue
from nnarena.kernels import recurrence
from nnarena.kernels.compiler import plan
from nnarena.kernels.gpu import runtime
from nnarena.kernels.gpu.gemm import product_and_sum_over_steps, product_over_steps, products_over_steps
from nnarena.kernels.gpu.parts import added_up
from nnarena.kernels.gpu.runtime import Loop
from nnarena.nn import CTGRU, CTRNN, DNC, GRU, LSTM, ODELSTM, ExpUnitaryRNN, MemoryAugmentedTransformer, UnitaryRNN

pytestmark = pytest.mark.gpu
PUBLISHED = {
    "lstm 8": lambda **more: LSTM(1, 8, **more),
    "unitary 8": lambda **more: UnitaryRNN(1, 8, capacity=4, **more),
    "lstm 64": lambda **more: LSTM(2, 64, **more),
    "gru 80": lambda **more: GRU(2, 80, **more),
    "ct_rnn 128": lambda **more: CTRNN(2, 128, **more),
    "ct_gru 32": lambda **more: CTGRU(2, 32, **more),
    "ode_lstm 64": lambda **more: ODELSTM(2, 64, **more),
    "unitary 128": lambda **more: UnitaryRNN(2, 128, **more),
    "exp_unitary 128": lambda **more: ExpUnitaryRNN(2, 128, **more),
    "dnc": lambda **more: DNC(2, 1, **more),
    "memory_transformer": lambda **more: MemoryAugmentedTransformer(2, 1, **more),
}
EVERY = CELLS | PUBLISHED
PROJECTING = ("lstm 64", "gru 80", "ct_rnn 128", "ct_gru 32", "ode_lstm 64", "unitary 128", "exp_unitary 128", "lstm 8")


@pytest.fixture(params=["one sample a program", "a block of samples"])
def mapping(request, monkeypatch):
    many = 0 if request.param == "a block of samples" else 1 << 30
    for name in ("MANY", "VERY_MANY", "ROUND"):
        monkeypatch.setattr(plan, name, many)
    monkeypatch.setattr(recurrence, "_loops", {})
    return request.param


@pytest.mark.parametrize("name", EVERY)
def test_a_kernel_gives_what_autograd_gives(name, mapping):
    layer = make(name, cells=EVERY).cuda()
    given = inputs(layer, batch=37, steps=9)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    assert any(isinstance(made, Loop) for made in recurrence._loops.values())
    exact, slopes = reference(layer, *given)
    tolerance = 2e-3 if name == "memory_cell" else 2e-5
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}", tolerance)
    largest = max(float(slope.norm()) for slope in slopes.values())
    for part in slopes:
        # what is added to all keys alike changes no attention: its gradient is zero, but for the rounding of others
        floor = 0.02 * largest if slopes[part].norm() < 1e-9 else 0.1
        # the exponential itself, outside of the kernel, is float32 too
        assert_near(gradients[part], slopes[part], part, 5e-4 if part == "triangle" else tolerance, floor)


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.setattr(plan, "MANY", 0)
    monkeypatch.setattr(plan, "VERY_MANY", 0)
    monkeypatch.setattr(recurrence, "_loops", {})


def widths():
    """The features of the inputs that loops read."""
    loops = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    return {shape[0] for loop in loops for shape in loop.signature.inputs}


@pytest.mark.parametrize("name", [*FEEDS, "memory_transformer"])
def test_blocks_of_matrices_give_what_autograd_gives(name, monkeypatch):
    """Of several samples a program, the last of which is not a whole one; steps are shared where gradients are summed
    after the loops."""
    monkeypatch.setattr(plan, "SINGLE", 1)
    monkeypatch.setattr(recurrence, "_loops", {})
    torch.manual_seed(0)
    layer = make(name, cells=PUBLISHED).cuda() if name in PUBLISHED else Fed(FEEDS[name]).cuda()
    given = inputs(layer, batch=37, steps=19)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    assert all(made.rows > 1 and made.remade for made in loop.kernels)
    exact, slopes = reference(layer, *given)
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}")
    largest = max(float(slope.norm()) for slope in slopes.values())
    for part in slopes:
        floor = 0.02 * largest if slopes[part].norm() < 1e-9 else 0.1  # as above
        assert_near(gradients[part], slopes[part], part, floor=floor)


@pytest.mark.parametrize("name", PROJECTING)
def test_a_few_features_are_projected_in_the_loop(name, blocks):
    layer = make(name, cells=PUBLISHED).cuda()
    given = inputs(layer, batch=37, steps=9)
    results, gradients = train(layer, dict(layer.named_parameters()), *given, driven=False)
    assert layer.input_size in widths()
    exact, slopes = reference(layer, *given, driven=False)
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}", 2e-5)
    for part in slopes:
        assert_near(gradients[part], slopes[part], part, 5e-4 if part == "triangle" else 2e-5)
    again = train(layer, dict(layer.named_parameters()), *given, driven=False)[1]
    assert all(torch.equal(gradients[part], again[part]) for part in gradients), "the same bits every time"


@pytest.mark.parametrize("name", PROJECTING[:-1])
def test_a_population_projects_in_its_loop_and_one_model_before_it(name, monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    layers = [make(name, seed, cells=PUBLISHED).cuda() for seed in range(16)]
    x = inputs(layers[0], batch=40, steps=7)[0]
    alone = []
    for layer in layers[:2]:
        output = layer.final(x)
        alone.append((output, torch.autograd.grad(output.sin().sum(), list(layer.parameters()), allow_unused=True)))
    assert 2 not in widths()
    weights, buffers = stack_module_state([Last(layer) for layer in layers])
    skeleton = Last(copy.deepcopy(layers[0]))

    def call(weights, buffers):
        return functional_call(skeleton, {**weights, **buffers}, (x,))[0]

    outputs = torch.vmap(call)(weights, buffers)
    assert 2 in widths()
    gradients = torch.autograd.grad(outputs.sin().sum(), list(weights.values()), allow_unused=True)
    for member, (output, slopes) in enumerate(alone):
        assert_near(outputs[member], output.double(), "output", 1e-5)
        for stacked, slope in zip(gradients, slopes, strict=True):
            if slope is not None:
                assert_near(stacked[member], slope.double(), "gradient", 1e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_last_output_may_be_all_that_is_wanted(name, mapping):
    layer = make(name, cells=PUBLISHED).cuda()
    given = inputs(layer, batch=37, steps=9)
    (ours,), gradients = train(Last(layer), dict(Last(layer).named_parameters()), *given)
    (exact,), slopes = reference(Last(layer, whole=True), *given)
    assert_near(ours, exact, "output", 2e-5)
    for part in slopes:
        assert_near(gradients[part], slopes[part], part, 5e-4 if part.endswith("triangle") else 2e-5)


def test_memory_may_begin_anywhere(mapping):
    layer = make("lstm 64", cells=PUBLISHED).cuda()
    constants, x = layer.constants(), torch.randn(20, 5, 2, device="cuda")
    u = layer.project(constants, x, None).compute()
    moved = torch.cat([u.new_zeros(1), u.flatten()])[1:].view_as(u)
    state = layer.initial_state(20, x)
    for one, other in zip(*(layer.drive(layer.step, constants, given, state)[1] for given in (u, moved)), strict=True):
        assert torch.equal(one, other)


class Divided(LSTM):
    """Whose state is divided by whole numbers."""

    def constants(self):
        return *super().constants(), 1 + torch.arange(self.hidden_size, device=self.bias.device) % 3

    @staticmethod
    def step(constants, u, state):
        (h, c), _ = LSTM.step(constants[:3], u, state)
        return (h / constants[3], c), h


def test_whole_numbers_divide(mapping):
    layer = make("divided", cells={"divided": lambda **more: Divided(2, 18, **more)}).cuda()
    given = inputs(layer, batch=20, steps=5)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    assert any(isinstance(made, Loop) for made in recurrence._loops.values())
    exact, slopes = reference(layer, *given)
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, "divided")


@pytest.mark.parametrize("few", [True, False], ids=["a processor a sample", "or a warp"])
def test_a_fresh_memory_is_in_one_order(few, mapping, monkeypatch):
    """Its slots begin as equals, which rounding would tell apart: in one thread or another, and on the way back."""
    monkeypatch.setattr(plan, "SINGLE", 1 << 30 if few else 0)
    torch.manual_seed(0)
    layer = DNC(2, 1, backend="fused").cuda()
    exact = copy.deepcopy(layer).double()
    exact.backend = "eager"
    x = torch.stack([torch.rand(128, 60), torch.zeros(128, 60)], -1).cuda()
    x[:, [10, 40], 1] = 1
    found = torch.autograd.grad(layer(x)[0].sin().sum(), list(layer.parameters()))
    wanted = torch.autograd.grad(exact(x.double())[0].sin().sum(), list(exact.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        assert_near(ours, theirs, "gradient", 1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_same_call_gives_the_same_bits(name, mapping):
    layer = make(name, cells=PUBLISHED).cuda()
    given = inputs(layer, batch=40, steps=6)
    once, again = (train(layer, dict(layer.named_parameters()), *given) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once[0], again[0], strict=True))
    assert all(torch.equal(once[1][part], again[1][part]) for part in once[1])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_population_is_its_members(name):
    layers = [make(name, seed, cells=PUBLISHED).cuda() for seed in range(3)]
    x = inputs(layers[0], batch=20, steps=7)[0]
    alone = []
    for layer in layers:
        output = layer(x)[0]
        alone.append((output, torch.autograd.grad(output.sin().sum(), list(layer.parameters()), allow_unused=True)))
    weights, buffers = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0])

    def call(weights, buffers):
        return functional_call(skeleton, {**weights, **buffers}, (x,))[0]

    outputs = torch.vmap(call)(weights, buffers)
    gradients = torch.autograd.grad(outputs.sin().sum(), list(weights.values()), allow_unused=True)
    for member, (output, slopes) in enumerate(alone):
        assert_near(outputs[member], output.double(), "output", 1e-5)
        for stacked, slope in zip(gradients, slopes, strict=True):
            if slope is not None:
                assert_near(stacked[member], slope.double(), "gradient", 1e-4)


def test_auto_takes_the_kernel_and_an_adaptive_solver_does_not(caplog):
    layer = CTRNN(2, 8).cuda()
    before = len(recurrence._loops)
    layer(torch.zeros(3, 4, 2, device="cuda"))
    assert len(recurrence._loops) > before
    adaptive = CTRNN(2, 8, solver="dopri5").cuda()
    output, _ = adaptive(torch.zeros(3, 4, 2, device="cuda"))
    assert output.shape == (3, 4, 8) and "run eagerly" in caplog.text


@pytest.mark.parametrize("precision", ["bf16x6", "tf32x3"])
def test_products_on_the_matrix_units_are_as_good_as_float32(precision, monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    monkeypatch.setattr(runtime, "make_plan", lambda *_: plan.Plan(rows=16, precision=precision, held=0))
    layer = LSTM(2, 64, backend="fused").cuda()
    x = torch.randn(64, 20, 2, device="cuda")
    exact = copy.deepcopy(layer).double()
    exact.backend = "eager"
    assert_near(layer(x)[0], exact(x.double())[0], precision, 2e-6)


def test_less_precision_is_there_for_those_who_ask_torch_for_it(monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    layer = LSTM(2, 64, backend="fused").cuda()
    x = torch.randn(512, 20, 2, device="cuda")
    full = layer(x)[0]
    torch.set_float32_matmul_precision("high")
    try:
        less = layer(x)[0]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert 1e-6 < (less - full).norm() / full.norm() < 5e-3


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 128, 100, 1, 64, 256),
        (3, 37, 9, 4, 80, 130),
        (16, 128, 100, 2, 17, 39),
        (1, 1090, 3, 1, 64, 64),
        (16, 1, 3000, 1, 240, 2),
        (2, 100, 7, 1, 1, 70),
        (1, 40, 9, 1, 1, 1),
    ],
    ids=str,
)
def test_a_product_over_samples_and_steps(sizes):
    S, B, T, rows, K, N = sizes
    torch.manual_seed(0)
    floor = (B * T * rows) ** 0.5  # of what a single number is where all cancel
    left = torch.randn(S, B, T + 1, rows, K, device="cuda")[:, :, :T]
    right = torch.randn(S, B, T, rows, N, device="cuda")
    wanted = torch.einsum("sbtrk,sbtrn->skn", left.double(), right.double())
    assert_near(product_over_steps(left, right, "bf16x6"), wanted, "product", 5e-7, floor)
    product, total = product_and_sum_over_steps(left, right, "bf16x6")
    assert_near(product, wanted, "product", 5e-7, floor)
    assert_near(total, left.double().sum((1, 2, 3)), "sum", 5e-7, floor)
    assert product.is_contiguous() and total.is_contiguous()


@pytest.mark.parametrize(
    "sizes",
    [
        (16, 128, 100, 1, 256, 64, 2, 1),
        (3, 37, 9, 4, 130, 80, 2, 3),
        (16, 128, 10, 1, 512, 32, 4, 1),
        (2, 5, 100, 1, 32, 32, 1, 1),
        (1, 40, 9, 1, 20, 70, 3, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["bf16x6", "tf32"])
def test_a_product_with_a_few_numbers_beside_it(sizes, precision):
    S, B, T, rows, K, N, features, share = sizes
    torch.manual_seed(0)
    floor, near = (B * T * rows) ** 0.5, 5e-7 if precision == "bf16x6" else 2e-3
    left = torch.randn(S, B, T + 1, rows, K, device="cuda")[:, :, :T]
    right, few = (torch.randn(shape, device="cuda") for shape in ((S, B, T, rows, N), (S, B, T // share, features)))
    found = products_over_steps(left, right, precision, few, summed=True)
    exact = left.double()
    assert_near(found.product, torch.einsum("sbtrk,sbtrn->skn", exact, right.double()), "product", near, floor)
    thin = torch.einsum("sbtf,sbtrk->sfk", few.double().repeat_interleave(share, 2), exact)
    assert_near(found.thin, thin, "thin product", 2e-6, floor)
    assert_near(found.sum, exact.sum((1, 2, 3)), "sum", 2e-6, floor)


@pytest.mark.parametrize("shape", [(1, 7), (2, 3, 5), (264, 2, 700), (1100, 33)], ids=str)
def test_parts_are_added_up(shape):
    parts = torch.randn(shape, device="cuda")
    total = added_up(parts)
    assert_near(total, parts.double().sum(0), "sum", 5e-07)
    assert torch.equal(total, added_up(parts)), "always in the same order"


def test_every_recurrent_competitor_is_compiled(caplog):
    """None of the published cells falls back to the plain loop."""
    for name in (name for name, component in catalogue("model").items() if component.reads == "sequences"):
        task = make_task(name)
        model = build(name, task, torch.device("cuda"))
        model(torch.randn(4, task.spec.length, task.spec.input_size, device="cuda")).sum().backward()
    assert "eagerly" not in caplog.text


def test_states_survive_a_round_trip_through_the_kernel():
    for name in ("lstm", "dnc", "unitary"):
        layer = make(name).cuda()
        x, spans, state = inputs(layer, batch=5, steps=8)
        more = {} if spans is None else {"timespans": spans}
        whole, last = layer(x, state, **more)
        first, between = layer(x[:, :3], state)
        second, end = layer(x[:, 3:], between)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-5, atol=1e-6)
        for part, other in zip(pytree.tree_leaves(end), pytree.tree_leaves(last), strict=True):
            torch.testing.assert_close(part, other, rtol=1e-5, atol=1e-6)
