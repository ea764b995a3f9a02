"""CTRNN solves its equation; and every layer of continuous time keeps its promises."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from nnarena.core.spec import TaskSpec
from nnarena.nn.ct_gru import CTGRU, ct_gru
from nnarena.nn.ct_rnn import CTRNN, ct_rnn
from nnarena.nn.ode_lstm import ODELSTM, ode_lstm
from nnarena.nn.recurrent import _parts
from nnarena.nn.solvers import FIXED

B, T, F, H = 3, 6, 2, 4
LAYERS = {
    "ct_rnn": (CTRNN, {}),
    "ct_rnn-heun": (CTRNN, {"solver": "heun", "tau": 0.7}),
    "ct_rnn-dopri5": (CTRNN, {"solver": "dopri5", "rtol": 1e-8, "atol": 1e-10}),
    "ct_gru": (CTGRU, {"scales": 2}),
    "ode_lstm": (ODELSTM, {}),
    "ode_lstm-rk4": (ODELSTM, {"solver": "rk4", "unfolds": 2}),
}
SMOOTH = [name for name in LAYERS if "dopri5" not in name]  # where steps do not jump with the numbers
every_layer = pytest.mark.parametrize("name", LAYERS)
with_and_without_time = pytest.mark.parametrize("timed", [False, True], ids=["steps", "timespans"])


def make(name="ct_rnn", **more):
    torch.manual_seed(0)
    layer, options = LAYERS[name]
    made = layer(F, H, dtype=torch.float64, **(options | more))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # no start value is zero, so every path counts
    return made


def inputs(steps=T):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, steps, F, dtype=torch.float64, generator=generator)
    return x, 0.2 + 1.5 * torch.rand(B, steps, dtype=torch.float64, generator=generator)


def start(layer):
    generator = torch.Generator().manual_seed(2)
    like = layer.initial_state(B, inputs()[0])
    parts = tuple(torch.randn(part.shape, dtype=torch.float64, generator=generator) for part in _parts(like))
    return parts if isinstance(like, tuple) else parts[0]


def close(a, b, tolerance=1e-10):
    for part, other in zip(_parts(a), _parts(b), strict=True):
        torch.testing.assert_close(part, other, rtol=tolerance, atol=tolerance)


def by_scipy(layer, x, timespans):
    """Every sample and every step by somebody else's solver, from the equation."""
    W, U, b, s = (p.detach().numpy() for p in (layer.weight_ih, layer.weight_hh, layer.bias, layer.scale))
    outputs = np.zeros((*x.shape[:2], len(s)))
    for row in range(x.shape[0]):
        h = np.zeros(len(s))
        for t in range(x.shape[1]):
            drive = W @ x[row, t].numpy() + b

            def slope(_, h, drive=drive):
                return s * np.tanh(drive + U @ h) - h / layer.tau

            h = solve_ivp(slope, (0, float(timespans[row, t])), h, method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
            outputs[row, t] = h
    return torch.from_numpy(outputs)


@with_and_without_time
@pytest.mark.parametrize("tau", [1.0, 0.6])
@pytest.mark.parametrize("solver", FIXED)
def test_more_unfolds_come_closer_to_the_solution_with_the_order_of_the_solver(solver, tau, timed):
    x, timespans = inputs(3)
    spans = timespans if timed else torch.ones_like(timespans)
    exact = by_scipy(make(tau=tau), x, spans)
    unfolds, errors = [16, 32, 64], []
    for count in unfolds:
        output, _ = make(tau=tau, solver=solver, unfolds=count)(x, timespans=timespans if timed else None)
        errors.append(float((output - exact).abs().max().detach()))
    order = -np.polyfit(np.log(unfolds), np.log(errors), 1)[0]
    assert abs(order - FIXED[solver].order) < 0.3
    assert errors[-1] < {"euler": 0.1, "heun": 1e-3, "rk4": 1e-6}[solver]


@pytest.mark.parametrize("tolerance", [1e-3, 1e-8])
def test_dopri5_finds_the_solution_within_its_tolerance(tolerance):
    x, timespans = inputs(3)
    layer = make(solver="dopri5", rtol=tolerance, atol=tolerance)
    close(layer(x, timespans=timespans)[0], by_scipy(layer, x, timespans), 5 * tolerance)


def test_the_published_configuration_by_hand():
    """One RK4 step of a third of the time, three times, with one unit."""
    layer = CTRNN(1, 1, dtype=torch.float64)
    W, U, b, s = 0.5, -0.8, 0.1, 1.3
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), (W, U, b, s), strict=True):
            parameter.fill_(value)

    def f(h):
        return s * np.tanh(W * 2.0 + U * h + b) - h

    h, d = 0.0, 1 / 3
    for _ in range(3):
        k1 = f(h)
        k2 = f(h + d / 2 * k1)
        k3 = f(h + d / 2 * k2)
        k4 = f(h + d * k3)
        h += d / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    output, state = layer(torch.full((1, 1, 1), 2.0, dtype=torch.float64))
    assert float(output.detach()) == float(state.detach()) == pytest.approx(h, rel=1e-13)


@every_layer
def test_timespans_of_one_are_no_timespans_and_others_matter(name):
    layer, (x, timespans) = make(name), inputs()
    output, state = layer(x)
    again, same = layer(x, timespans=torch.ones(B, T))  # of another type, too
    close(again, output)
    close(same, state)
    assert again.dtype == torch.float64
    assert not torch.allclose(layer(x, timespans=timespans)[0], output)


@with_and_without_time
@pytest.mark.parametrize("cut", [1, T - 1])
@every_layer
def test_two_pieces_are_the_whole(name, cut, timed):
    layer, (x, timespans) = make(name), inputs()
    first_time, second_time = (timespans[:, :cut], timespans[:, cut:]) if timed else (None, None)
    whole, last = layer(x, start(layer), timespans if timed else None)
    first, between = layer(x[:, :cut], start(layer), first_time)
    second, end = layer(x[:, cut:], between, second_time)
    close(torch.cat([first, second], 1), whole)
    close(end, last)


@every_layer
def test_the_order_of_samples_does_not_matter_and_each_is_alone(name):
    layer, (x, timespans), order = make(name), inputs(), [2, 0, 1]
    output, _ = layer(x, timespans=timespans)
    close(layer(x[order], timespans=timespans[order])[0], output[order])
    close(layer(x[1:2], timespans=timespans[1:2])[0], output[1:2])


@every_layer
def test_the_future_changes_nothing(name):
    layer, (x, timespans) = make(name), inputs()
    output, _ = layer(x, timespans=timespans)
    other, spans = x.clone(), timespans.clone()
    other[:, 4:] += 1
    spans[:, 4:] += 1
    changed, _ = layer(other, timespans=spans)
    close(changed[:, :4], output[:, :4], 1e-12)
    assert not torch.allclose(changed[:, 4:], output[:, 4:])


@every_layer
def test_time_first_is_the_same_turned_round(name):
    layer, turned, (x, timespans) = make(name), make(name, batch_first=False), inputs()
    output, last = layer(x, start(layer), timespans)
    flipped, also_last = turned(x.transpose(0, 1), start(layer), timespans.transpose(0, 1))
    close(flipped.transpose(0, 1), output)
    close(also_last, last)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_the_slopes(name):
    torch.manual_seed(3)
    layer, options = LAYERS[name]
    small = layer(2, 2, dtype=torch.float64, **options)
    names, weights = zip(*small.named_parameters(), strict=True)
    x = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    spans = torch.rand(2, 2, dtype=torch.float64).add_(0.2).requires_grad_()
    state = small.initial_state(2, x.detach())
    parts = [torch.randn_like(part).requires_grad_() for part in _parts(state)]

    def run(x, spans, *rest):
        given = tuple(rest[: len(parts)]) if isinstance(state, tuple) else rest[0]
        values = dict(zip(names, rest[len(parts) :], strict=True))
        output, last = torch.func.functional_call(small, values, (x, given, spans))
        return output, *_parts(last)

    assert torch.autograd.gradcheck(run, (x, spans, *parts, *weights))


@every_layer
def test_copies_pickles_and_state_dicts_give_the_same_numbers(name):
    layer, (x, timespans) = make(name), inputs()
    output, _ = layer(x, timespans=timespans)
    kind, options = LAYERS[name]
    other = kind(F, H, dtype=torch.float64, **options)
    assert not torch.equal(other(x, timespans=timespans)[0], output)
    other.load_state_dict(layer.state_dict())
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        assert torch.equal(again(x, timespans=timespans)[0], output)


@every_layer
def test_dtype_and_device_are_those_asked_for(name):
    kind, options = LAYERS[name]
    layer = kind(F, H, device="meta", dtype=torch.float16, **options)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float16)}
    assert kind(F, H, **options)(torch.zeros(1, 1, F))[0].dtype == torch.float32


def test_start_values_are_those_published():
    torch.manual_seed(0)
    layer = CTRNN(30, 20)
    torch.testing.assert_close(layer.weight_hh.T @ layer.weight_hh, torch.eye(20), atol=1e-5, rtol=0)
    bound = (6 / 50) ** 0.5
    assert 0.9 * bound < layer.weight_ih.abs().max() <= bound
    assert not bool(layer.bias.any()) and bool((layer.scale == 1).all())


@every_layer
def test_wrong_inputs_states_and_times_are_sentences(name):
    layer, (x, timespans) = make(name), inputs()
    with pytest.raises(ValueError, match=rf"\(batch, time, {F}\), not \(3, 6, 3\)"):
        layer(torch.zeros(B, T, F + 1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"wants timespans \(3, 6\) for this input, not \(3, 5\)"):
        layer(x, timespans=timespans[:, 1:])
    with pytest.raises(ValueError, match=r"must not be negative; the least is -0\.5"):
        layer(x, timespans=torch.full((B, T), -0.5))
    parts = tuple(part[:1] for part in _parts(start(layer)))
    with pytest.raises(ValueError, match=r"wants a state of \(3, .*4\).* not \(1, .*4\)"):
        layer(x, parts if len(parts) > 1 else parts[0])


@pytest.mark.parametrize("kind", [CTRNN, CTGRU, ODELSTM])
def test_wrong_sizes_are_sentences(kind):
    with pytest.raises(ValueError, match="input_size must be at least 1, not 0"):
        kind(0, 3)
    with pytest.raises(ValueError, match="hidden_size must be at least 1, not -1"):
        kind(3, -1)
    with pytest.raises(ValueError, match="backend is 'auto', 'native', 'fused', 'compiled' or 'eager', not 'fast'"):
        kind(3, 3, backend="fast")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"solver": "rk5"}, "solver is one of euler, heun, rk4, dopri5, not 'rk5'"),
        ({"unfolds": 0}, "unfolds must be at least 1, not 0"),
        ({"tau": 0}, "tau must be positive, not 0"),
        ({"tau": float("nan")}, "tau must be positive, not nan"),
        ({"atol": -1e-3}, "atol must be positive, not -0.001"),
    ],
)
def test_wrong_options_are_sentences(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        CTRNN(F, H, **options)


def test_it_says_how_it_is_solved():
    assert repr(CTRNN(2, 3)) == "CTRNN(2, 3, solver=rk4, unfolds=3)"
    assert repr(CTRNN(2, 3, solver="dopri5")) == "CTRNN(2, 3, solver=dopri5)"


@pytest.mark.parametrize("build", [ct_rnn, ode_lstm])
def test_the_options_of_a_competitor_reach_its_equation(build):
    spec = TaskSpec(input_shape=(5, F), output_size=2, target="values")
    answers = []
    for options in ({}, {"unfolds": 9}, {"solver": "heun"}, {"solver": "dopri5"}):
        torch.manual_seed(0)
        answers.append(build(spec, **options)(torch.ones(1, 5, F)))
    assert all(not torch.equal(a, b) for place, a in enumerate(answers) for b in answers[:place])


@pytest.mark.parametrize("build", [ct_rnn, ct_gru, ode_lstm])
def test_elapsed_time_is_no_feature_but_goes_to_the_layer(build):
    spec = TaskSpec(input_shape=(T, F), output_size=2, target="values", timespans=True)
    model = build(spec, hidden_size=H)
    assert model.layer.input_size == F
    x, timespans = torch.randn(B, T, F), torch.rand(B, T)
    close(model(x, timespans), model.head(model.layer(x, timespans=timespans)[0][:, -1]), 1e-6)
