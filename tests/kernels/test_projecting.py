"""Cells that project a few features in their loop, in Triton's interpreter, against autograd in float64."""

from __future__ import annotations

import pytest
import torch
from kernel_helpers import Last, assert_near, inputs, make, reference, train
from sm90 import loop_of
from torch import nn
from torch.func import functional_call, stack_module_state

from nnarena.kernels import recurrence, toolchain
from nnarena.kernels.compiler import plan
from nnarena.kernels.compiler.plan import THIN
from nnarena.kernels.cpu import chunk
from nnarena.kernels.cpu import runtime as cpu
from nnarena.kernels.gpu import gemm
from nnarena.kernels.gpu.after import After
from nnarena.kernels.gpu.runtime import Loop
from nnarena.kernels.linear import Projection, linear
from nnarena.nn import CTGRU, CTRNN, GRU, LSTM, ODELSTM, Elman, ExpUnitaryRNN, Jordan, Recurrent, UnitaryRNN

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered", "ignore:divide by zero", "ignore:overflow encountered"
)
BATCH = 18  # more than a block of sixteen, and not a whole one


class Own(Recurrent):
    """A cell that somebody brings, with or without a bias, and with an input beside the projection."""

    def __init__(self, input_size, hidden_size, bias=True, **more):
        super().__init__(input_size, hidden_size, **more)
        self.W = nn.Parameter(torch.randn(2 * hidden_size, input_size) / 2)
        self.b = nn.Parameter(torch.randn(2 * hidden_size)) if bias else None
        self.U = nn.Parameter(torch.randn(hidden_size, hidden_size) / hidden_size**0.5)

    def initial_state(self, batch, like):
        return like.new_zeros(batch, self.hidden_size)

    def constants(self):
        return (self.U,)

    def project(self, constants, x, timespans):
        return x.square().sum(-1, keepdim=True), Projection(x, self.W, self.b)

    @staticmethod
    def step(constants, u, state):
        size, (gate, new) = u[0], u[1].chunk(2, -1)
        state = state + gate.sigmoid() * ((size * new + state @ constants[0]).tanh() - state)
        return state, state


CELLS = {
    "lstm": lambda features, **more: LSTM(features, 20, **more),
    "gru": lambda features, **more: GRU(features, 17, **more),
    "elman": lambda features, **more: Elman(features, 19, **more),
    "jordan": lambda features, **more: Jordan(features, 18, 4, **more),
    "ct_rnn": lambda features, **more: CTRNN(features, 18, **more),
    "ct_gru": lambda features, **more: CTGRU(features, 16, scales=6, **more),
    "ode_lstm": lambda features, **more: ODELSTM(features, 18, **more),
    "unitary": lambda features, **more: UnitaryRNN(features, 18, capacity=4, **more),
    "unitary real": lambda features, **more: UnitaryRNN(features, 6, capacity=2, complex=False, **more),
    "exp_unitary": lambda features, **more: ExpUnitaryRNN(features, 9, **more),
    "own": lambda features, **more: Own(features, 17, **more),
    "own without bias": lambda features, **more: Own(features, 17, bias=False, **more),
}
ALONE = {"gru": 1, "own": 1, "own without bias": 1}  # parts of a gradient that no other product reads


def layer_of(name, features, seed=0):
    return make(name, seed, {name: lambda **more: CELLS[name](features, **more)})


@pytest.fixture(params=["a block of samples", "a block, many weights"])
def mapping(request, monkeypatch):
    """Blocks of samples, whatever the sizes would suggest."""
    for name in ("SINGLE", "MANY", "VERY_MANY", *(["HEAVY"] if request.param.endswith("weights") else [])):
        monkeypatch.setattr(plan, name, 0)
    monkeypatch.setattr(recurrence, "_loops", {})
    return request.param


@pytest.fixture
def blocks(monkeypatch):
    for name in ("SINGLE", "MANY", "VERY_MANY", "HEAVY"):
        monkeypatch.setattr(plan, name, 0)
    monkeypatch.setattr(recurrence, "_loops", {})


def the_loop():
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    return loop


def in_a_block():
    """The one kernel for blocks of samples that was made."""
    (found,) = [kernels for made, kernels in the_loop().kernels.items() if made.rows > 1]
    return found


def assert_right(layer, given, driven=False):
    results, gradients = train(layer, dict(layer.named_parameters()), *given, driven=driven)
    exact, slopes = reference(layer, *given, driven=driven)
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}")
    assert gradients.keys() == slopes.keys()
    for part in slopes:
        assert_near(gradients[part], slopes[part], part)


def widths(loop):
    """The features of the inputs that a loop reads."""
    return {shape[0] for shape in loop.signature.inputs}


@pytest.mark.parametrize("name", CELLS)
def test_two_features_are_projected_in_the_loop(name, mapping):
    layer = layer_of(name, 2)
    assert_right(layer, inputs(layer, BATCH))
    assert 2 in widths(the_loop())


@pytest.mark.parametrize("features", [1, 4, 5])
@pytest.mark.parametrize("name", CELLS)
def test_up_to_four_features_are(name, features, blocks):
    layer = layer_of(name, features)
    assert_right(layer, inputs(layer, BATCH))
    assert (features in widths(the_loop())) == (features <= THIN)


@pytest.mark.parametrize("name", ["lstm", "ct_gru", "own"])
def test_an_input_that_wants_a_gradient_is_projected_before_the_loop(name, blocks):
    layer = layer_of(name, 2)
    assert_right(layer, inputs(layer, BATCH), driven=True)
    assert 2 not in widths(the_loop())


@pytest.mark.parametrize("features", [2, 7])
@pytest.mark.parametrize("name", CELLS)
def test_whoever_wants_to_may_project_anything_in_a_loop(name, features, mapping, monkeypatch):
    monkeypatch.setattr(recurrence, "takes_projection", lambda x, backend: True)
    layer = layer_of(name, features)
    assert_right(layer, inputs(layer, BATCH), driven=True)
    assert features in widths(the_loop())


@pytest.mark.parametrize("features", [2, 7])
@pytest.mark.parametrize("name", CELLS)
def test_a_step_with_its_projection_is_a_step(name, features, monkeypatch):
    """For a loop that is no kernel of ours: it is called with the features of a step."""
    monkeypatch.setattr(recurrence, "takes_projection", lambda x, backend: backend == "mine")
    layer = layer_of(name, features)
    x, spans, state = inputs(layer, 3)
    constants = layer.constants()
    projected = layer.project(constants, x, spans)
    assert recurrence.within(layer.step, constants, projected, "fused") is None
    inside = recurrence.within(layer.step, constants, projected, "mine")
    assert inside is not None
    step, more, read = inside
    assert any(part is x for part in (read if isinstance(read, tuple) else (read,)))
    assert step is recurrence.within(layer.step, constants, projected, "mine")[0], "one function, compiled once"
    output, _ = recurrence.eager(step, more, read, state)
    wanted, _ = recurrence.eager(layer.step, constants, recurrence.computed(projected), state)
    torch.testing.assert_close(output, wanted)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_elsewhere_it_is_computed_before_the_loop_as_ever(backend, monkeypatch):
    """Also in chunks of steps that torch compiles, where a loop cannot be one function."""
    seen = []
    monkeypatch.setattr(toolchain, "compiler", lambda: None)
    monkeypatch.setattr(cpu, "_made", {})
    monkeypatch.setattr(chunk, "run", lambda *given: seen.append(given[2]) or chunk.loop(*given))
    monkeypatch.setattr(recurrence, "eager", chunk.run)
    layer = layer_of("lstm", 2)
    layer.backend = backend
    x = inputs(layer, 3)[0]
    layer(x)
    assert torch.equal(seen[0], linear(x, layer.weight_ih, layer.bias))


@pytest.mark.parametrize("name", CELLS)
def test_the_last_output_may_be_all_that_is_wanted(name, blocks):
    layer = layer_of(name, 2)
    given = inputs(layer, BATCH)
    (ours,), gradients = train(Last(layer), dict(Last(layer).named_parameters()), *given, driven=False)
    (exact,), slopes = reference(Last(layer, whole=True), *given, driven=False)
    assert_near(ours, exact, "output")
    for part in slopes:
        assert_near(gradients[part], slopes[part], part)
    assert 2 in widths(the_loop())


@pytest.mark.parametrize("name", CELLS)
def test_without_gradients_the_numbers_are_the_same(name, blocks):
    layer = layer_of(name, 2)
    x = inputs(layer, BATCH)[0]
    output = layer(x)[0]
    with torch.no_grad():
        assert torch.equal(layer(x)[0], output)


@pytest.mark.parametrize("name", CELLS)
def test_a_population_is_its_members(name, monkeypatch):
    """One alone has too few sequences for a block. How many there are together, `torch.vmap` hides."""
    monkeypatch.setattr(plan, "MANY", 2 * BATCH)
    monkeypatch.setattr(plan, "VERY_MANY", 2 * BATCH)
    monkeypatch.setattr(plan, "HEAVY", 0)
    monkeypatch.setattr(recurrence, "_loops", {})
    layers = [layer_of(name, 2, seed) for seed in (0, 1)]
    x = inputs(layers[0], BATCH)[0]
    alone = []
    for layer in layers:
        output = layer(x)[0]
        alone.append((output, torch.autograd.grad(output.sin().sum(), list(layer.parameters()), allow_unused=True)))
    assert 2 not in widths(the_loop())
    recurrence._loops.clear()
    weights, buffers = stack_module_state(layers)

    def call(weights, buffers):
        return functional_call(layers[0], {**weights, **buffers}, (x,))[0]

    outputs = torch.vmap(call)(weights, buffers)
    assert 2 in widths(the_loop())
    gradients = torch.autograd.grad(outputs.sin().sum(), list(weights.values()), allow_unused=True)
    for member, (output, slopes) in enumerate(alone):
        assert_near(outputs[member], output.double(), "output", 1e-6)
        for stacked, slope in zip(gradients, slopes, strict=True):
            if slope is not None:
                assert_near(stacked[member], slope.double(), "gradient", 2e-5)


def test_copies_of_copies_are_counted():
    counted = []

    def inner(x, y):
        counted.append(recurrence.copies([x, y]))
        return x + y

    torch.vmap(torch.vmap(inner, in_dims=(0, None)), in_dims=(None, 0))(torch.ones(3, 2), torch.ones(5, 2))
    assert counted == [15] and recurrence.copies([torch.ones(2)]) == 1


def numbers_moved(kernels):
    """Of a sample at every step: what both kernels read and write."""
    compiled = kernels.compiled
    return sum(
        torch.Size(compiled.shapes[name]).numel()
        for text in (compiled.forward, compiled.backward)
        for name in text.arguments
        if not name.startswith(("c", "dc", "start", "dstart", "end"))
    )


@pytest.mark.parametrize("name", CELLS)
def test_what_is_projected_is_never_written(name, blocks, monkeypatch):
    layer = layer_of(name, 2)
    given = inputs(layer, BATCH)
    train(layer, dict(layer.named_parameters()), *given, driven=False)
    inside = in_a_block()
    assert not any(argument.startswith("du") for argument in inside.compiled.backward.arguments)
    recurrence._loops.clear()
    monkeypatch.setattr(recurrence, "takes_projection", lambda x, backend: False)
    train(layer, dict(layer.named_parameters()), *given, driven=False)
    assert numbers_moved(inside) < numbers_moved(in_a_block())


@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_weights_and_bias_come_with_a_product(name, blocks, monkeypatch):
    """Nobody reads the large factor for them once more."""
    read, alone = [], After._sum_alone

    def counted(kernels, wanted, *rest):
        read.append(wanted)
        return alone(kernels, wanted, *rest)

    monkeypatch.setattr(After, "_sum_alone", counted)
    layer = layer_of(name, 2)
    train(layer, dict(layer.named_parameters()), *inputs(layer, BATCH), driven=False)
    assert len(read) == ALONE.get(name, 0)
    biases = [name for name in layer.state_dict() if name.startswith("bias")]
    sums = [name for name in in_a_block().compiled.shapes if name.startswith("dc")]
    assert len(sums) <= {"ct_rnn": 1, "ode_lstm": 1, "unitary": 1, "unitary real": 1, "exp_unitary": 1}.get(name, 0), (
        f"{biases} are no sums of the loop"
    )


PRODUCTS = [
    (2, 6, 5, 1, 70, 40, 2, 1), (2, 6, 6, 4, 70, 40, 2, 3), (1, 40, 7, 2, 33, 130, 4, 1),
    (2, 9, 70, 1, 64, 80, 1, 1), (1, 3, 90, 2, 20, 9, 3, 2), (1, 20, 4, 1, 80, 3, 2, 1),
]  # fmt: skip


@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize("summed", [False, True])
def test_a_product_with_a_few_numbers_beside_it(sizes, processors, summed, monkeypatch):
    monkeypatch.setattr(gemm, "PROCESSORS", processors)
    S, B, T, rows, K, N, features, share = sizes
    torch.manual_seed(0)
    left, right = torch.randn(S, B, T + 1, rows, K)[:, :, :T], torch.randn(S, B, T, rows, N)
    few = torch.randn(S, B, T // share, features)
    found = gemm.products_over_steps(left, right, "bf16x6", few, summed)
    exact = left.double()
    assert_near(found.product, torch.einsum("sbtrk,sbtrn->skn", exact, right.double()), "product", 1e-6)
    thin = torch.einsum("sbtf,sbtrk->sfk", few.double().repeat_interleave(share, 2), exact)
    assert_near(found.thin, thin, "thin product", 1e-6)
    if summed:
        assert_near(found.sum, exact.sum((1, 2, 3)), "sum", 1e-6)
    else:
        assert found.sum.numel() == 0


@pytest.mark.parametrize(("cell", "held"), [("lstm, projecting", True), ("ct_gru, projecting", False)])
def test_constants_that_are_too_many_to_hold_are_read_where_they_are_used(cell, held):
    compiled = loop_of(cell).at(2048).compiled
    (weight,) = [name for name, shape in compiled.shapes.items() if name.startswith("c") and shape[:1] == (2,)]
    before, _, within = compiled.forward.source.partition("for step in range(")
    assert (f"load({weight} " in before) == held and (f"load({weight} " in within) != held
