"""Compiled chunks give what the eager loop gives, at any length, or say why they do not."""

from __future__ import annotations

import functools
import logging

import pytest
import torch

from nnarena.core.workload import expecting
from nnarena.kernels import toolchain
from nnarena.kernels.cpu import chunk
from nnarena.nn import CTRNN, GRU, LSTM

B, F, H = 3, 2, 4
needs_compiler = pytest.mark.skipif(toolchain.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(chunk, "_tried", {})
    monkeypatch.setattr(chunk, "_sizes", {})


def cell(constants, u, state):
    """Two inputs, two parts of a state that share their memory at the start, a number that is not a tensor."""
    (weight, rate), (x, dt), (h, c) = constants, u, state
    c = c + rate * dt * (x - c)
    h = torch.tanh(h @ weight + c)
    return (h, c), torch.cat([h, c], -1)


def problem(length, dtype=torch.float64, batch=B):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(F, F, dtype=dtype, generator=generator).requires_grad_()
    x = torch.randn(batch, length, F, dtype=dtype, generator=generator).requires_grad_()
    dt = torch.rand(batch, length, 1, dtype=dtype, generator=generator)
    zeros = torch.zeros(batch, F, dtype=dtype)
    return (weight, 0.5), (x, dt), (zeros, zeros)


def train(take, length, last=False, **options):
    constants, projected, state = problem(length, **options)
    output, (h, c) = take(cell, constants, projected, state, last)
    (output.square().sum() + h.sin().sum() + 2 * c.sum()).backward()
    return output, h, c, constants[0].grad, projected[0].grad


@needs_compiler
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_it_is_the_eager_loop_at_any_length(dtype, within):
    run = functools.partial(chunk.run, size=3)
    for length in (7, 3, 2):  # with a rest, without one, too short for a chunk
        for ours, theirs in zip(train(run, length, dtype=dtype), train(chunk.loop, length, dtype=dtype), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=within, atol=within)
    assert list(chunk._tried.values()) == ["", ""]  # one compilation for each length that has a chunk


@needs_compiler
@pytest.mark.parametrize("take", [chunk.loop, functools.partial(chunk.run, size=3)], ids=["eager", "compiled"])
def test_the_last_output_may_be_all_that_is_wanted(take):
    def every(*given):
        outputs, state = chunk.loop(*given[:-1])
        return outputs[:, -1:], state

    for ours, theirs in zip(train(take, 7, last=True), train(every, 7), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert len(chunk._tried) == (take is not chunk.loop)


@needs_compiler
def test_a_cell_is_compiled_once():
    """Some of its constants are parameters, others are computed from them."""
    layer = GRU(F, H, backend="compiled", dtype=torch.float64)
    torch._dynamo.reset()
    counts = torch._dynamo.utils.counters["stats"]
    before = counts["unique_graphs"]
    layer(torch.randn(B, 6, F, dtype=torch.float64))[0].sum().backward()
    assert counts["unique_graphs"] == before + 1


@needs_compiler
@pytest.mark.parametrize("shape", [(F,), (F, F)], ids=["vector", "matrix"])
def test_of_a_matrix_little_is_saved_for_the_way_back(shape, monkeypatch):
    def memory(weight, u, state):
        state = torch.tanh((state * u.view(-1, *(1 for _ in shape)) + 1).exp().sin() @ weight)
        return state, state.flatten(1)

    def train(take):
        weight = torch.eye(F, dtype=torch.float64).requires_grad_()
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.numel()) or x, lambda x: x):
            u = torch.linspace(-1, 1, 6 * B, dtype=torch.float64).view(B, 6, 1)
            output, _ = take(memory, weight, u, torch.ones(B, *shape, dtype=torch.float64))
        output.sum().backward()
        return output, weight.grad, sum(packed)

    run = functools.partial(chunk.run, size=3)
    output, gradient, saved = train(run)
    for ours, theirs in zip((output, gradient), train(chunk.loop), strict=False):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    monkeypatch.setattr(chunk, "SAVED", ())
    monkeypatch.setattr(chunk, "_tried", {})
    torch._dynamo.reset()
    before = train(run)[2]
    assert saved < before if len(shape) > 1 else saved == before


@needs_compiler
def test_a_layer_that_cannot_be_one_function_takes_chunks_where_asked_or_where_the_run_is_long(monkeypatch):
    layer, x = CTRNN(F, H, solver="euler", unfolds=1).double(), torch.randn(B, 4, F, dtype=torch.float64)
    taken = []
    monkeypatch.setattr(chunk, "run", lambda step, *rest: taken.append(step) or chunk.loop(step, *rest))
    layer(x)
    with expecting(calls=chunk.REPAID // 4 - 1):  # of four steps each
        layer(x)
    assert not taken
    with expecting(calls=chunk.REPAID // 4):
        layer(x)
        with torch.no_grad():
            layer(x)
        torch.vmap(lambda part: layer(part)[0])(x.unsqueeze(1))
    assert len(taken) == 1
    CTRNN(F, H, backend="compiled").double()(x)
    assert len(taken) == 2


def test_what_cannot_be_compiled_runs_eagerly_and_says_so_once(caplog, monkeypatch):
    monkeypatch.setattr(toolchain, "compiler", lambda: "c++")

    def broken(step):
        raise RuntimeError("no registers left\nat line 3")

    monkeypatch.setattr(chunk, "_compiled", broken)
    with caplog.at_level(logging.WARNING, "nnarena.kernels"):
        results = [train(functools.partial(chunk.run, size=3), 7) for _ in range(2)]
    for ours, theirs in zip(results[1], train(chunk.loop, 7), strict=True):
        assert torch.equal(ours, theirs)
    assert [record.getMessage() for record in caplog.records] == [
        "The steps of cell run eagerly: they could not be compiled (no registers left)."
    ]
    assert chunk.refusals() == ["they could not be compiled (no registers left)"]


def test_attention_is_left_to_torch(caplog, monkeypatch):
    monkeypatch.setattr(toolchain, "compiler", lambda: "c++")
    monkeypatch.setattr(chunk, "_compiled", lambda step: pytest.fail("nothing must be compiled"))

    def attentive(constants, u, state):
        tokens = torch.stack([u, state], 1).unsqueeze(1)  # of one head: torch has attention of its own for these
        state = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0, 1]
        return state, state

    with caplog.at_level(logging.WARNING, "nnarena.kernels"):
        chunk.run(attentive, (), torch.ones(B, 4, F), torch.zeros(B, F))
    assert "torch's own attention is faster" in caplog.text


def test_without_anything_to_learn_nothing_has_a_gradient(monkeypatch):
    monkeypatch.setattr(toolchain, "compiler", lambda: "c++")
    monkeypatch.setattr(chunk, "_compiled", lambda step: chunk.loop)
    constants, (x, dt), state = problem(6)
    output, last = chunk.run(cell, (constants[0].detach(), 0.5), (x.detach(), dt), state, size=3)
    assert not output.requires_grad and not last[0].requires_grad


def test_without_a_compiler_it_is_the_eager_loop(monkeypatch):
    monkeypatch.setattr(toolchain, "compiler", lambda: None)
    monkeypatch.setattr(chunk, "_compiled", lambda step: pytest.fail("nothing must be compiled"))
    assert torch.equal(train(chunk.run, 7)[0], train(chunk.loop, 7)[0])
    layer, x = LSTM(F, H, backend="compiled").double(), torch.ones(B, 3, F, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], layer.native(x, layer.initial_state(B, x))[0])


def test_long_steps_make_short_chunks():
    constants, (x, dt), state = problem(4)
    u = (x[:, 0], dt[:, 0])

    def long(constants, u, state):
        for _ in range(chunk.OPERATIONS // 8):
            state, output = cell(constants, u, state)
        return state, output

    assert chunk._size(cell, constants, u, state) == chunk.CHUNK
    assert chunk._size(long, constants, u, state) == 1


@pytest.mark.parametrize(("length", "most", "size"), [(100, 10, 10), (100, 6, 5), (384, 10, 8), (4, 10, 4), (5, 1, 1)])
def test_chunks_leave_few_steps_over(length, most, size):
    assert chunk._fit(length, most) == size
