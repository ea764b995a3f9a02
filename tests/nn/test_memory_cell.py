"""The memory cell against a loop over scalars; and it remembers."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.memory_cell import FIXED, TRAINED, MemoryCell, memory_cell
from nnarena.tasks.cell import Cell

B, T = 3, 9


def make(init="random", **more) -> MemoryCell:
    torch.manual_seed(0)
    return MemoryCell(init=init, dtype=torch.float64, **more)


def soft(cell: MemoryCell) -> MemoryCell:
    """Gentle slopes, so that every path carries a gradient that can be measured."""
    for kind in ("recurrent", "inhibitory", "input"):
        getattr(cell, f"{kind}_slope").fill_(2.0)
    cell.capacitance.fill_(1.3)
    cell.resting_potential.fill_(0.1)
    cell.inhibitory_target.fill_(-0.2)
    return cell


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def slow(cell: MemoryCell, x, state, timespans, sigmoid, exact=torch.Tensor.item):
    """One sample, one neuron, one number at a time."""
    p = {name: exact(getattr(cell, name)) for name in [*TRAINED, *FIXED]}
    results = []
    for sample, (a, b), clock in zip(x, state, timespans, strict=True):
        a, b = exact(a), exact(b)
        trace = []
        for (to_a, to_b), span in zip(sample, clock, strict=True):
            for _ in range(cell.discretization):
                slopes = []
                for v, other, u in ((a, b, to_a), (b, a, to_b)):
                    current = p["leakage"] * (p["resting_potential"] - v)
                    for kind, before in (("input", exact(u)), ("recurrent", v), ("inhibitory", other)):
                        opened = sigmoid(p[f"{kind}_slope"] * (before - p[f"{kind}_mean"]))
                        current = current + p[f"{kind}_conductance"] * opened * (p[f"{kind}_target"] - v)
                    slopes.append(current / p["capacitance"])
                h = exact(span) * p["step_size"] / cell.discretization
                a, b = a + h * slopes[0], b + h * slopes[1]
            trace.append((a, b))
        results.append(trace)
    return results


def logistic(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


@pytest.mark.parametrize("init", ["published", "random"])
@pytest.mark.parametrize("discretization", [1, 2, 3])
@pytest.mark.parametrize("timed", [False, True], ids=["steps", "timespans"])
def test_it_equals_a_loop_over_scalars(init, discretization, timed):
    cell = make(init, discretization=discretization)
    x, state = draw(B, T, 2).round(), draw(B, 2, seed=2)
    timespans = 0.2 + draw(B, T, seed=3) if timed else torch.ones(B, T, dtype=torch.float64)
    output, last = cell(x, state, timespans if timed else None)
    close(output.detach(), torch.tensor(slow(cell, x, state, timespans, logistic), dtype=torch.float64))
    assert torch.equal(last, output[:, -1])


def test_every_gradient_equals_that_of_the_loop():
    cell = soft(make())
    x, state = draw(B, T, 2).requires_grad_(), draw(B, 2, seed=2).requires_grad_()
    weights = draw(B, T, 2, seed=4)
    (cell(x, state)[0] * weights).sum().backward()
    fast = [x.grad, state.grad, *(p.grad for p in cell.parameters())]
    for tensor in (x, state, *cell.parameters()):
        tensor.grad = None
    trace = slow(cell, x, state, torch.ones(B, T), torch.sigmoid, exact=lambda number: number)
    stacked = torch.stack([torch.stack([torch.stack(pair) for pair in row]) for row in trace])
    (stacked * weights).sum().backward()
    for gradient, theirs in zip(fast, [x.grad, state.grad, *(p.grad for p in cell.parameters())], strict=True):
        assert bool(theirs.any())
        close(gradient, theirs)


def test_gradients_are_the_slopes():
    cell = soft(make())
    names, tensors = zip(*cell.named_parameters(), strict=True)

    def run(x, state, timespans, *weights):
        return torch.func.functional_call(cell, dict(zip(names, weights, strict=True)), (x, state, timespans))

    arguments = (draw(2, 3, 2), draw(2, 2, seed=2), draw(2, 3, seed=3))
    assert torch.autograd.gradcheck(run, (*(part.clone().requires_grad_() for part in arguments), *tensors))


@pytest.mark.parametrize("up", [0, 1])
def test_it_keeps_a_state_for_ten_thousand_steps_and_switches_on_a_pulse(up):
    cell = make("published").requires_grad_(False)
    held = torch.zeros(1, 2, dtype=torch.float64)
    held[0, up] = 1
    silence, pulse = torch.zeros(1, 10_000, 2, dtype=torch.float64), held.flip(-1).unsqueeze(1)
    output, state = cell(silence, held)
    assert (output - held).abs().max() < 0.05
    _, switched = cell(pulse, state)
    output, end = cell(silence[:, :500], switched)
    assert (output[:, 5:] - held.flip(-1)).abs().max() < 0.05
    again, _ = cell(pulse, end)  # a second pulse on the same line changes nothing
    assert (again - held.flip(-1)).abs().max() < 0.1


def test_the_published_start_solves_the_cell_problem():
    task = Cell(samples=4)
    samples = task.samples(np.random.default_rng(0))
    net = memory_cell(task.spec)
    with torch.no_grad():
        output = net(torch.tensor(samples.inputs))
    assert float(((output - torch.tensor(samples.targets)) ** 2).mean()) < 0.0005
    assert sum(parameter.numel() for parameter in net.parameters()) == 9


def test_a_random_start_is_drawn_from_the_ranges_and_does_not_blow_up():
    torch.manual_seed(0)
    cells = [MemoryCell(init="random") for _ in range(50)]
    for name, (_, (low, high)) in TRAINED.items():
        values = torch.stack([getattr(cell, name).detach() for cell in cells])
        assert low <= values.min() < values.max() <= high
    with torch.no_grad():
        assert max(float(cell(torch.zeros(1, 300, 2))[0].abs().max()) for cell in cells) < 5
    assert torch.equal(make().leakage, make().leakage)
    assert {name: p.item() for name, p in make("published").named_parameters()} == {
        n: v for n, (v, _) in TRAINED.items()
    }


@pytest.mark.parametrize("cut", [1, 4, T - 1])
def test_two_pieces_are_the_whole(cut):
    cell, x = make(), draw(B, T, 2)
    whole, last = cell(x)
    first, between = cell(x[:, :cut])
    second, end = cell(x[:, cut:], between)
    close(torch.cat([first, second], 1), whole)
    close(end, last)


def test_it_is_causal_and_samples_keep_to_themselves():
    cell, x = soft(make()), draw(B, T, 2)
    output = cell(x)[0]
    later = x.clone()
    later[:, 5:] += 1
    assert torch.equal(cell(later)[0][:, :5], output[:, :5]) and not torch.equal(cell(later)[0], output)
    order = torch.tensor([2, 0, 1])
    close(cell(x[order])[0], output[order])


def test_the_two_neurons_are_alike():
    cell, x, state = soft(make()), draw(B, T, 2), draw(B, 2, seed=2)
    close(cell(x.flip(-1), state.flip(-1))[0].flip(-1), cell(x, state)[0])


def test_time_first_is_the_same_turned_round():
    x = draw(B, T, 2)
    close(make(batch_first=False)(x.transpose(0, 1))[0].transpose(0, 1), make()(x)[0])


def test_copies_pickles_and_state_dicts_give_the_same_numbers():
    cell, x = soft(make()), draw(B, T, 2)
    other = MemoryCell(dtype=torch.float64)
    other.load_state_dict(cell.state_dict())
    for again in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), other):
        assert torch.equal(again(x)[0], cell(x)[0]) and again.leakage is not cell.leakage


def test_dtype_and_device_are_those_asked_for():
    cell = MemoryCell(device="meta", dtype=torch.float16)
    tensors = [*cell.parameters(), *cell.buffers()]
    assert len(tensors) == 16 and {(t.device.type, t.dtype) for t in tensors} == {("meta", torch.float16)}


def test_wrong_sizes_states_and_timespans_are_sentences():
    cell, x = make(), draw(B, T, 2)
    with pytest.raises(ValueError, match=r"\(batch, time, 2\), not"):
        cell(draw(B, T, 3))
    with pytest.raises(ValueError, match=rf"\({B}, 2\) for this input, not \({B}, 3\)"):
        cell(x, draw(B, 3))
    with pytest.raises(ValueError, match="wants timespans"):
        cell(x, timespans=torch.ones(B, T + 1))
    with pytest.raises(ValueError, match="init is 'published' or 'random', not 'zero'"):
        MemoryCell(init="zero")
    with pytest.raises(ValueError, match="discretization must be at least 1, not 0"):
        MemoryCell(discretization=0)


@pytest.mark.parametrize(
    "change",
    [{"input_shape": (9, 3)}, {"output_size": 3}, {"per_step": False}, {"target": "class"}, {"input_shape": (9, 2, 2)}],
)
def test_it_enters_tasks_of_its_kind_only(change):
    fit = {"input_shape": (9, 2), "output_size": 2, "target": "values", "per_step": True}
    assert memory_cell(TaskSpec(**fit))(torch.zeros(1, 9, 2)).shape == (1, 9, 2)
    with pytest.raises(Unfit, match=r"^it reads two lines .*\.$"):
        memory_cell(TaskSpec(**fit | change))
