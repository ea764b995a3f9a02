"""LTC is the published cell, number for number, and computes only the synapses that are there."""

from __future__ import annotations

import copy
import pickle

import ncps.torch
import ncps.wirings
import numpy as np
import pytest
import torch

from nnarena.core.spec import TaskSpec
from nnarena.nn.ltc import LTC, POSITIVE, RANGES, at_least, neural_circuit_policies
from nnarena.nn.wirings import NCP, AutoNCP, FullyConnected, Random, Wiring

B, T, F = 3, 5, 4
MAKERS = {
    "circuit": NCP(5, 4, 2, 2, 2, 6, 2, seed=1),
    "automatic": AutoNCP(9, 3, seed=2),
    "random": Random(6, 2, 0.6, seed=3),
    "full": FullyConnected(5, 2, seed=4),
    "without self": FullyConnected(5, 5, seed=5, self_connections=False),
}
# Our names and theirs.
NAMES = {
    "leak": "gleak",
    "rest": "vleak",
    "capacitance": "cm",
    "weight": "w",
    "slope": "sigma",
    "mean": "mu",
    "target": "erev",
    "sensory_weight": "sensory_w",
    "sensory_slope": "sensory_sigma",
    "sensory_mean": "sensory_mu",
    "sensory_target": "sensory_erev",
    "input_weight": "input_w",
    "input_bias": "input_b",
    "output_weight": "output_w",
    "output_bias": "output_b",
}


def shake(layer: LTC) -> LTC:
    """No two start values alike and none at 0, so that every path counts."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            noise = torch.rand_like(parameter)
            parameter.add_(noise if name.removeprefix("sensory_") in POSITIVE else noise - 0.5)
    return layer


def make(wiring=MAKERS["circuit"], **more) -> LTC:
    torch.manual_seed(0)
    return shake(LTC(F, wiring, dtype=torch.float64, **more))


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spans(seed: int = 3) -> torch.Tensor:
    return 0.1 + 2 * torch.rand(B, T, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a, b, **more):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, **more)


def twin(ours: LTC) -> ncps.torch.LTCCell:
    """The published cell on the same wiring with the same weights."""
    wiring = ncps.wirings.Wiring(ours.units)
    wiring.set_output_dim(ours.output_size)
    wiring.build(F)
    wiring.adjacency_matrix = np.array(ours.wiring.adjacency)
    wiring.sensory_adjacency_matrix = np.array(ours.wiring.sensory)
    cell = ncps.torch.LTCCell(
        wiring, ode_unfolds=ours.unfolds, implicit_param_constraints=ours.positive == "softplus"
    ).double()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            getattr(cell, NAMES[name]).copy_(parameter)
    return cell


def drive(cell, x, state, timespans):
    outputs = []
    for t in range(x.shape[1]):
        elapsed = 1.0 if timespans is None else timespans[:, t : t + 1]
        output, state = cell(x[:, t], state, elapsed)
        outputs.append(output)
    return torch.stack(outputs, 1), state


def agree(ours: LTC, timespans: torch.Tensor | None) -> None:
    cell = twin(ours)
    x, state = draw(B, T, F).requires_grad_(), draw(B, ours.units, seed=2).requires_grad_()
    their_x, their_state = x.detach().clone().requires_grad_(), state.detach().clone().requires_grad_()
    output, last = ours(x, state, timespans)
    their_output, their_last = drive(cell, their_x, their_state, timespans)
    assert output.shape == (B, T, ours.output_size) and last.shape == (B, ours.units)
    close(output, their_output)
    close(last, their_last)
    for out, end in ((output, last), (their_output, their_last)):
        ((out * draw(*out.shape, seed=4)).sum() + (end * draw(*end.shape, seed=5)).sum()).backward()
    close(x.grad, their_x.grad)
    close(state.grad, their_state.grad)
    for name, parameter in ours.named_parameters():
        assert parameter.grad.any(), name
        close(parameter.grad, getattr(cell, NAMES[name]).grad, msg=name)


@pytest.mark.parametrize("timed", [False, True], ids=["steps", "timespans"])
@pytest.mark.parametrize("positive", ["clip", "softplus"])
@pytest.mark.parametrize("wiring", MAKERS.values(), ids=MAKERS)
def test_it_equals_the_published_cell_forward_final_state_and_every_gradient(wiring, positive, timed):
    agree(make(wiring, positive=positive), spans() if timed else None)


@pytest.mark.parametrize("unfolds", [1, 3])
@pytest.mark.parametrize(
    "theirs",
    [ncps.wirings.NCP(5, 4, 2, 2, 2, 6, 2), ncps.wirings.AutoNCP(9, 3), ncps.wirings.Random(6, 2, 0.7)],
    ids=lambda wiring: type(wiring).__name__,
)
def test_it_equals_the_published_cell_on_published_wirings(theirs, unfolds):
    theirs.build(F)
    wiring = Wiring(theirs.adjacency_matrix, theirs.sensory_adjacency_matrix, theirs.output_dim)
    agree(make(wiring, unfolds=unfolds), spans())


def test_it_equals_the_published_layer():
    ours = make(7, positive="softplus")
    theirs = ncps.torch.LTC(F, 7).double()
    theirs.rnn_cell.load_state_dict(twin(ours).state_dict())
    x = draw(B, T, F)
    close(ours(x)[0], theirs(x, torch.zeros(B, 7, dtype=torch.float64))[0])


def test_with_many_unfolds_it_is_the_differential_equation():
    ours = make(MAKERS["full"], unfolds=2000)
    x, state = draw(1, 1, F), draw(1, ours.units, seed=2)
    p = {name: parameter.detach() for name, parameter in ours.named_parameters()}

    def slope(v):
        sensory = (p["input_weight"] * x[0, 0] + p["input_bias"])[:, None]
        current = p["leak"] * (p["rest"] - v)
        for prefix, before in (("", v[:, None]), ("sensory_", sensory)):
            opened = torch.sigmoid(p[f"{prefix}slope"] * (before - p[f"{prefix}mean"]))
            current = current + (p[f"{prefix}weight"] * opened * (p[f"{prefix}target"] - v)).sum(0)
        return current / p["capacitance"]

    v, h = state[0], 1 / 200
    for _ in range(200):  # the classical Runge-Kutta method
        a = slope(v)
        b = slope(v + h / 2 * a)
        c = slope(v + h / 2 * b)
        v = v + h / 6 * (a + 2 * b + 2 * c + slope(v + h * c))
    torch.testing.assert_close(ours(x, state)[1][0], v, rtol=0, atol=1e-3)


def test_no_time_changes_nothing_and_forever_stays_between_the_targets():
    ours = make()
    x, state = draw(B, T, F), draw(B, ours.units, seed=2)
    close(ours(x, state, torch.zeros(B, T, dtype=torch.float64))[1], state)
    reach = torch.cat([ours.rest, ours.target.flatten(), ours.sensory_target.flatten()]).abs().max()
    assert (ours(x, state, torch.full((B, T), 1e12, dtype=torch.float64))[1].abs() <= reach).all()


def test_a_missing_synapse_can_hold_anything():
    ours, x = make(), draw(B, T, F)
    output = ours(x)[0]
    with torch.no_grad():
        for prefix, adjacency in (("", ours.wiring.adjacency), ("sensory_", ours.wiring.sensory)):
            for name in ("weight", "slope", "mean", "target"):
                getattr(ours, prefix + name)[torch.tensor(adjacency == 0)] = 1e3
    assert torch.equal(ours(x)[0], output)


def test_a_circuit_without_any_synapse_leaks():
    ours = make(Wiring(np.zeros((3, 3)), np.zeros((F, 3)), 1))
    x = draw(B, 200, F)
    torch.testing.assert_close(ours(x)[1], ours.rest.detach().expand(B, 3), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cut", [1, 3, T - 1])
def test_two_pieces_are_the_whole(cut):
    ours, x, timespans = make(), draw(B, T, F), spans()
    whole, last = ours(x, timespans=timespans)
    first, between = ours(x[:, :cut], timespans=timespans[:, :cut])
    second, end = ours(x[:, cut:], between, timespans[:, cut:])
    close(torch.cat([first, second], 1), whole)
    close(end, last)


def test_it_is_causal_and_samples_keep_to_themselves():
    ours, x = make(), draw(B, T, F)
    output = ours(x)[0]
    later = x.clone()
    later[:, 3:] += 1
    assert torch.equal(ours(later)[0][:, :3], output[:, :3]) and not torch.equal(ours(later)[0], output)
    order = torch.tensor([2, 0, 1])
    close(ours(x[order])[0], output[order])


def test_time_first_is_the_same_turned_round():
    x, timespans = draw(B, T, F), spans()
    output, last = make()(x, timespans=timespans)
    turned, also_last = make(batch_first=False)(x.transpose(0, 1), timespans=timespans.T)
    close(turned.transpose(0, 1), output)
    close(also_last, last)


@pytest.mark.parametrize("positive", ["clip", "softplus"])
def test_gradients_are_the_slopes(positive):
    torch.manual_seed(0)
    ours = shake(LTC(2, NCP(2, 2, 1, 1, 1, 2, 1), unfolds=2, positive=positive, dtype=torch.float64))
    names, tensors = zip(*ours.named_parameters(), strict=True)

    def run(x, state, timespans, *weights):
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(ours, given, (x, state, timespans))

    arguments = (draw(2, 2, 2), draw(2, 5, seed=2), spans()[:2, :2])
    assert torch.autograd.gradcheck(run, (*(part.clone().requires_grad_() for part in arguments), *tensors))


def test_a_clipped_value_comes_back_when_the_data_want_it_and_sinks_no_further():
    value = torch.tensor([-0.5, -0.5, 0.5, 0.5], requires_grad=True)
    at_least(value, 0.0).mul(torch.tensor([1.0, -1.0, 1.0, -1.0])).sum().backward()
    assert value.grad.tolist() == [0.0, -1.0, 1.0, -1.0]
    assert at_least(value, 0.25).tolist() == [0.25, 0.25, 0.5, 0.5]
    stacked = torch.stack([value.detach(), -value.detach()])
    slopes = torch.func.vmap(torch.func.grad(lambda row: -at_least(row, 0.0).sum()))(stacked)
    assert bool((slopes == -1).all())


def test_negative_values_count_as_none():
    ours, none, x = make(), make(), draw(B, T, F)
    with torch.no_grad():
        for name in ("weight", "sensory_weight", "leak"):
            getattr(ours, name)[..., ::2] = -0.3
            getattr(none, name)[..., ::2] = 0
        ours.capacitance[0], none.capacitance[0] = -1, none.epsilon
    close(ours(x)[0], none(x)[0])
    assert bool(ours(x, timespans=torch.zeros(B, T))[0].isfinite().all())


@pytest.mark.parametrize("positive", ["clip", "softplus"])
def test_start_values_lie_in_the_published_ranges_either_way(positive):
    torch.manual_seed(0)
    ours = LTC(30, 30, positive=positive, dtype=torch.float64)
    for name, parameter in ours.named_parameters():
        kind = name.removeprefix("sensory_")
        if kind in RANGES:
            low, high = RANGES[kind]
            value = ours._positive(parameter) if kind in POSITIVE else parameter
            assert low <= value.min() < low + 0.15 * (high - low) and high - 0.15 * (high - low) < value.max() <= high
    assert np.array_equal(ours.target.detach(), ours.wiring.adjacency)
    assert np.array_equal(ours.sensory_target.detach(), ours.wiring.sensory)


def test_copies_pickles_and_state_dicts_give_the_same_numbers():
    ours, x = make(), draw(B, T, F)
    other = LTC(F, MAKERS["circuit"], dtype=torch.float64)
    assert not torch.equal(other(x)[0], ours(x)[0])
    other.load_state_dict(ours.state_dict())
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), other):
        assert torch.equal(again(x)[0], ours(x)[0]) and again.weight is not ours.weight


def test_dtype_and_device_are_those_asked_for():
    ours = LTC(F, 3, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in ours.parameters()} == {("meta", torch.float16)}
    assert {b.device.type for b in ours.buffers()} == {"meta"}
    output, state = LTC(F, MAKERS["circuit"])(torch.zeros(1, 2, F), timespans=torch.ones(1, 2, dtype=torch.float64))
    assert output.dtype == state.dtype == torch.float32


def test_wrong_sizes_states_and_timespans_are_sentences():
    ours, x = make(), draw(B, T, F)
    with pytest.raises(ValueError, match=rf"\(batch, time, {F}\), not \({B}, {T}, {F + 1}\)"):
        ours(draw(B, T, F + 1))
    with pytest.raises(ValueError, match=rf"\({B}, {ours.units}\) for this input, not \({B}, 2\)"):
        ours(x, draw(B, 2))
    with pytest.raises(ValueError, match="wants timespans"):
        ours(x, timespans=torch.ones(B, T + 1))
    with pytest.raises(ValueError, match="must not be negative"):
        ours(x, timespans=-torch.ones(B, T))
    with pytest.raises(ValueError, match="The wiring is for 3 inputs, and input_size is 4"):
        LTC(F, MAKERS["circuit"].wire(3))
    with pytest.raises(ValueError, match="unfolds must be at least 1, not 0"):
        LTC(F, 3, unfolds=0)
    with pytest.raises(ValueError, match="positive is 'clip' or 'softplus', not 'relu'"):
        LTC(F, 3, positive="relu")
    with pytest.raises(ValueError, match="units must be at least 1, not 0"):
        LTC(F, 0)


def spec(**more) -> TaskSpec:
    return TaskSpec(**{"input_shape": (20, 3), "output_size": 2, "target": "values"} | more)


def test_the_competitor_answers_with_its_motor_neurons():
    torch.manual_seed(0)
    net = neural_circuit_policies(spec())
    x = torch.randn(B, T, 3)
    output, state = net.layer(x)
    assert torch.equal(net(x), output[:, -1]) and torch.equal(net(x), state[:, :2])
    torch.manual_seed(0)
    assert torch.equal(neural_circuit_policies(spec(per_step=True))(x), output)


def test_the_competitors_wiring_is_the_published_one_and_depends_on_its_own_seed_only():
    nets = []
    for seed, options in ((0, {}), (1, {}), (0, {"wiring_seed": 1})):
        torch.manual_seed(seed)
        nets.append(neural_circuit_policies(spec(), **options).layer.wiring)
    assert np.array_equal(nets[0].adjacency, nets[1].adjacency)
    assert not np.array_equal(nets[0].adjacency, nets[2].adjacency)
    sizes = {name: len(nets[0].layer(name)) for name in ("inter", "command", "motor")}
    assert sizes == {"inter": 9, "command": 7, "motor": 2}
    command = nets[0].layer("command")
    assert np.count_nonzero(nets[0].adjacency[np.ix_(command, command)]) == 14


COUNTS = {"add": (2, 1, 1349), "memory": (1, 10, 2908), "mnist": (8, 10, 3650), "activity": (7, 7, 2857)}


@pytest.mark.parametrize(("inputs", "outputs", "count"), [*COUNTS.values(), (17, 17, 6767)], ids=[*COUNTS, "walker"])
def test_the_parameters_are_as_many_as_published(inputs, outputs, count):
    net = neural_circuit_policies(spec(input_shape=(5, inputs), output_size=outputs))
    assert sum(parameter.numel() for parameter in net.parameters()) == count


def test_picking_synapses_is_the_same_as_matrices_of_them(monkeypatch):
    """Large wirings are not written out as matrices; nothing else depends on it."""
    layer = LTC(3, FullyConnected(5, 2), dtype=torch.float64)
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    output, state = layer(x)
    slopes = torch.autograd.grad(output.sum() + state.sum(), list(layer.parameters()), allow_unused=True)
    monkeypatch.setattr("nnarena.nn.ltc.WRITTEN_OUT", 0)
    picked, last = layer(x)
    torch.testing.assert_close(picked, output)
    torch.testing.assert_close(last, state)
    others = torch.autograd.grad(picked.sum() + last.sum(), list(layer.parameters()), allow_unused=True)
    for one, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(one, other)
