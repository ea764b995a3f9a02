"""Every cell as machine code of this CPU, against autograd in float64: every output and every gradient."""

from __future__ import annotations

import copy
import logging
import platform

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_helpers import (
    CELLS,
    STEPS_OF_OTHERS,
    Own,
    assert_near,
    check_last,
    check_without_gradients,
    inputs,
    make,
    reference,
    train,
)
from torch.func import functional_call, stack_module_state
from torch.utils import _pytree as pytree

from nnarena.core.workload import expecting
from nnarena.kernels import recurrence, toolchain
from nnarena.kernels.compiler.plan import LANES
from nnarena.kernels.compiler.tiles import MAPS as RULES
from nnarena.kernels.cpu import chunk
from nnarena.kernels.cpu import runtime as cpu
from nnarena.kernels.cpu.nest import MAPS
from nnarena.kernels.cpu.nests import ALIGNED, Room
from nnarena.nn import CTRNN, GRU, LSTM, Recurrent

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def torch_compiles_nothing(monkeypatch):
    """What is tested here must not have been computed by somebody else."""
    monkeypatch.setattr(recurrence, "_loops", {})
    monkeypatch.setattr(chunk, "run", lambda *_: pytest.fail("torch was to compile it"))


def compiled(name, seed=0):
    layer = make(name, seed)
    for part in layer.modules():
        if isinstance(part, Recurrent):
            part.backend = "compiled"
    return layer


def tolerance(name):
    return 2e-3 if name == "memory_cell" else 3e-5  # whose slopes are a hundred times as steep


@pytest.mark.parametrize("batch", [3, LANES + 3], ids=["a part of a block", "more than a block"])
@pytest.mark.parametrize("name", CELLS)
def test_a_loop_gives_what_autograd_gives(name, batch):
    layer = compiled(name)
    given = inputs(layer, batch)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    for place, (ours, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_near(ours, wanted, f"result {place}", tolerance(name))
    assert gradients.keys() == slopes.keys()
    for part in slopes:
        assert_near(gradients[part], slopes[part], part, tolerance(name))


@pytest.mark.parametrize("name", CELLS)
def test_without_gradients_the_numbers_are_the_same(name):
    check_without_gradients(compiled(name), 2)


@pytest.mark.parametrize("name", CELLS)
def test_the_last_output_may_be_all_that_is_wanted(name):
    check_last(compiled(name), tolerance(name))


@pytest.mark.parametrize("name", CELLS)
def test_a_population_is_its_members(name):
    layers = [compiled(name, seed) for seed in (0, 1)]
    x = inputs(layers[0], 2)[0]
    weights, buffers = stack_module_state(layers)
    found = torch.vmap(lambda *own: functional_call(layers[0], own, (x,))[0])(weights, buffers)
    gradients = torch.autograd.grad(found.sin().sum(), list(weights.values()), allow_unused=True)
    for seed, layer in enumerate(layers):
        output = layer(x)[0]
        assert_near(found[seed], output.double(), "output", 1e-6)
        alone = torch.autograd.grad(output.sin().sum(), list(layer.parameters()), allow_unused=True)
        for ours, wanted in zip(gradients, alone, strict=True):
            assert (ours is None) == (wanted is None)
            if wanted is not None:
                assert_near(ours[seed], wanted.double(), "gradient", tolerance(name))


@pytest.mark.parametrize("name", STEPS_OF_OTHERS)
def test_a_cell_that_somebody_brings(name):
    torch.manual_seed(0)

    class Theirs(Own):
        step = staticmethod(STEPS_OF_OTHERS[name])

    layer = Theirs()
    layer.backend = "compiled"
    given = inputs(layer, LANES + 1)
    results, gradients = train(layer, dict(layer.named_parameters()), *given)
    exact, slopes = reference(layer, *given)
    for ours, wanted in zip([*results, *gradients.values()], [*exact, *slopes.values()], strict=True):
        assert_near(ours, wanted, name)


def test_threads_change_no_bit():
    layer = compiled("lstm")
    given = inputs(layer, 3 * LANES)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(train(layer, dict(layer.named_parameters()), *given)[1])
    torch.set_num_threads(1)
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in other)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are processors of one kind")
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"], ids=["four lanes a register", "eight lanes a register"])
@pytest.mark.parametrize("name", ["lstm", "dnc", "attention_split"])
def test_older_processors_give_the_same_to_rounding(name, processor, monkeypatch):
    layer = compiled(name)
    given = inputs(layer, LANES + 3)
    wanted = train(layer, dict(layer.named_parameters()), *given)
    monkeypatch.setattr(cpu, "target", lambda: f"-march={processor}")
    monkeypatch.setattr(cpu, "_made", {})
    found = train(layer, dict(layer.named_parameters()), *given)
    for ours, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        assert_near(ours, theirs.double(), name, 1e-5)


class Applied(Recurrent):
    """A function of single numbers as a cell: its output is what it makes of the input."""

    def __init__(self, function):
        super().__init__(1, 1, backend="compiled")
        self.function = function

    def initial_state(self, batch, like):
        return like.new_zeros(batch, 1)

    def constants(self):
        return (self.function,)

    @staticmethod
    def step(constants, u, state):
        return state, constants[0](u)


FUNCTIONS = {
    "exp": (torch.exp, (-104, 89)),
    "tanh": (torch.tanh, (-12, 12)),
    "sigmoid": (torch.sigmoid, (-87, 90)),
    "log": (torch.log, (1e-30, 1e30)),
    "log1p": (torch.log1p, (-0.99, 1e20)),
    "expm1": (torch.expm1, (-20, 80)),
    "sqrt": (torch.sqrt, (0, 1e30)),
    "rsqrt": (torch.rsqrt, (1e-20, 1e20)),
    "reciprocal": (torch.reciprocal, (-1e3, 1e3)),
    "sin": (torch.sin, (-1e4, 1e4)),
    "cos": (torch.cos, (-1e4, 1e4)),
    "erf": (torch.erf, (-5, 5)),
    "abs": (torch.abs, (-3, 3)),
    "sign": (torch.sign, (-3, 3)),
    "relu": (torch.relu, (-3, 3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_right_to_the_last_digits(name):
    function, (low, high) = FUNCTIONS[name]
    numbers = np.concatenate([np.linspace(low, high, 4001), *(sign * np.geomspace(1e-30, 1, 200) for sign in (1, -1))])
    x = torch.from_numpy(numbers[(numbers >= low) & (numbers <= high)].astype(np.float32)).view(-1, 1, 1)
    ours, wanted = Applied(function)(x)[0].double(), function(x.double())
    error = (ours - wanted).abs() / wanted.abs().clamp_min(1e-37)  # less has no digits to lose
    wrong = ~(error <= 4e-7) & (wanted.float() != ours.float())
    assert not wrong.any(), f"{x[wrong][:3].tolist()}: {ours[wrong][:3].tolist()}, not {wanted[wrong][:3].tolist()}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_number_stays_none(name):
    """Else a trial that diverges would look as if it did not."""
    x = torch.tensor([float("nan"), float("inf"), float("-inf")]).view(-1, 1, 1)
    torch.testing.assert_close(Applied(FUNCTIONS[name][0])(x)[0], FUNCTIONS[name][0](x), equal_nan=True)


def test_the_larger_of_two_is_no_number_if_one_is_none():
    x = torch.tensor([[float("nan"), 1.0], [1.0, float("nan")], [2.0, 1.0]])
    for function in (torch.maximum, torch.minimum):
        layer = Applied(lambda u, function=function: function(u[:, :1], u[:, 1:]))
        layer.input_size = 2
        found = layer(x.unsqueeze(1))[0].flatten()
        torch.testing.assert_close(found, function(x[:, 0], x[:, 1]), equal_nan=True)


def test_every_operation_of_a_kernel_is_one_here():
    assert MAPS.keys() == RULES.keys()


@pytest.mark.parametrize("features", [1, 2, 4, 5, 17, 40])
@pytest.mark.parametrize("wanted", [False, True], ids=["input", "input with a gradient"])
def test_inputs_of_any_width_are_projected_in_the_loop(features, wanted, monkeypatch):
    torch.manual_seed(0)
    layer = GRU(features, 19, backend="compiled")
    exact = copy.deepcopy(layer).double()
    exact.backend = "eager"
    x = torch.randn(5, 4, features, requires_grad=wanted)
    twin = x.detach().double().requires_grad_(wanted)
    params = [*layer.parameters(), *([x] if wanted else [])]
    others = [*exact.parameters(), *([twin] if wanted else [])]
    found = torch.autograd.grad(layer(x)[0].sin().sum(), params)
    for ours, theirs in zip(found, torch.autograd.grad(exact(twin)[0].sin().sum(), others), strict=True):
        assert_near(ours, theirs, "gradient")
    (loop,) = recurrence._loops.values()
    assert loop.kernels.compiled.shapes["u0"] == (features,)


@pytest.mark.parametrize("shape", [(0, 4, 2), (0, 1, 2)])
def test_an_empty_batch_is_one(shape):
    layer = LSTM(2, 3, backend="compiled")
    output, (h, _) = layer(torch.zeros(shape))
    assert output.shape == (0, shape[1], 3) and h.shape == (0, 3)
    output.sum().backward()
    assert not layer.weight_hh.grad.any()


def test_no_steps_are_an_error_as_they_are_without_a_compiler(monkeypatch):
    monkeypatch.setattr(chunk, "run", lambda *given: chunk.loop(*given))
    layer = LSTM(2, 3, backend="compiled")
    with pytest.raises(RuntimeError):
        layer(torch.zeros(2, 0, 2))


def test_float64_is_left_to_torch(monkeypatch):
    taken = []
    monkeypatch.setattr(chunk, "run", lambda step, *rest: taken.append(step) or chunk.loop(step, *rest))
    CTRNN(2, 3, backend="compiled", dtype=torch.float64)(torch.randn(2, 3, 2, dtype=torch.float64))
    assert taken


def test_a_layer_is_compiled_where_asked_or_where_the_run_is_long(monkeypatch):
    taken = []
    way = recurrence.compiled
    monkeypatch.setattr(recurrence, "compiled", lambda step, *rest: taken.append(step) or way(step, *rest))
    layer, x = CTRNN(2, 4, solver="euler", unfolds=1), torch.randn(3, 4, 2)
    layer(x)
    with expecting(calls=recurrence.REPAID // 4 - 1):  # of four steps each
        layer(x)
    assert not taken
    with expecting(calls=recurrence.REPAID // 4):
        layer(x)
        with torch.no_grad():
            layer(x)
        torch.vmap(lambda part: layer(part)[0])(x.unsqueeze(1))
        LSTM(2, 4)(x)
        assert len(taken) == 4
        layer.double()(x.double())  # which is left to torch, if that pays: here it does not
    assert len(taken) == 5
    LSTM(2, 4, backend="compiled")(x)
    assert len(taken) == 6


@pytest.mark.parametrize("trouble", ["none", "fails", "no machine code"])
def test_without_a_compiler_that_works_it_is_somebody_elses_loop(trouble, monkeypatch, caplog, tmp_path):
    command = tmp_path / "compiler"
    command.write_text(
        "#!/bin/sh\n" + ("echo 'x.cpp:1: error: no registers left' >&2; exit 1\n" if trouble == "fails" else "")
    )
    command.chmod(0o755)
    monkeypatch.setattr(toolchain, "compiler", lambda: None if trouble == "none" else str(command))
    monkeypatch.setattr(toolchain, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(cpu, "_made", {})
    monkeypatch.setattr(chunk, "run", lambda step, *rest: chunk.loop(step, *rest))
    recurrence._tell.cache_clear()
    layer, x = GRU(2, 4, backend="compiled"), torch.randn(3, 4, 2)
    with caplog.at_level(logging.WARNING, "nnarena.kernels"):
        first, second = layer(x)[0], layer(x)[0]
    layer.backend = "eager"
    assert torch.equal(first, layer(x)[0]) and torch.equal(first, second)
    (said,) = [record.getMessage() for record in caplog.records]
    assert {"none": "there is no C++ compiler", "fails": "no registers left", "no machine code": "cannot be loaded"}[
        trouble
    ] in said
    assert not [path for path in tmp_path.glob("*.so") if path.stat().st_size and trouble == "fails"]


def test_machine_code_lies_on_disk_for_the_next_time(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(cpu, "_made", {})
    layer, x = GRU(2, 4, backend="compiled"), torch.randn(3, 4, 2)
    layer(x)
    assert {path.suffix for path in tmp_path.iterdir()} == {".cpp", ".so"}
    assert len(list(tmp_path.glob("*.so"))) == 2  # forward and backward
    monkeypatch.setattr(cpu, "_made", {})
    monkeypatch.setattr(cpu, "compile_to", lambda *_: pytest.fail("it is there"))
    recurrence._loops.clear()
    layer(x)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 5)), max_size=30))
def test_nobody_lies_where_somebody_else_does(wishes):
    room, held = Room(), {}
    for number, (size, last) in enumerate(wishes):
        begin = room.take(size)
        assert begin % ALIGNED == 0 and begin + size <= room.size
        assert all(begin + size <= other or other + length <= begin for other, length, _ in held.values())
        held[number] = (begin, size, number + last)
        for gone in [key for key, (*_, until) in held.items() if until <= number]:
            room.give_back(*held.pop(gone)[:2])
    for begin, size, _ in held.values():
        room.give_back(begin, size)
    assert room.free == ([(0, room.size)] if wishes else [])
