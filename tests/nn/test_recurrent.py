"""LSTM, GRU and Elman are torch's, number for number; and whatever is recurrent keeps its promises."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from nnarena.nn import GRU, LSTM, Elman, Recurrent
from nnarena.nn.recurrent import _parts

B, T, F, H = 3, 7, 2, 5
LAYERS = [LSTM, GRU, Elman]
TORCHS = {LSTM: nn.LSTM, GRU: nn.GRU, Elman: nn.RNN}


def make(layer, backend="auto", **more):
    torch.manual_seed(0)
    made = layer(F, H, backend=backend, dtype=torch.float64, **more)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # no start value is zero, so every path counts
    return made


def torch_twin(layer):
    """torch's own layer with the same weights."""
    twin = TORCHS[type(layer)](F, H, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        twin.weight_ih_l0.copy_(layer.weight_ih)
        twin.weight_hh_l0.copy_(layer.weight_hh)
        if isinstance(layer, LSTM | Elman):
            twin.bias_ih_l0.copy_(layer.bias)
            twin.bias_hh_l0.zero_()
        else:
            twin.bias_ih_l0.copy_(layer.bias_ih)
            twin.bias_hh_l0.copy_(layer.bias_hh)
    return twin


def inputs(steps=T):
    return torch.randn(B, steps, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def start(layer, scale=1.0):
    generator = torch.Generator().manual_seed(2)
    like = layer.initial_state(B, inputs())
    parts = tuple(scale * torch.randn(part.shape, dtype=torch.float64, generator=generator) for part in _parts(like))
    return parts if isinstance(like, tuple) else parts[0]


def leaf(state):
    """The state as leaves of a graph of their own."""
    parts = tuple(part.clone().requires_grad_() for part in _parts(state))
    return parts if isinstance(state, tuple) else parts[0]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def weigh(output, state):
    """A scalar in which every output and every part of the final state counts differently."""
    total = (output * torch.arange(1, output.numel() + 1, dtype=output.dtype).reshape(output.shape).cos()).sum()
    for place, part in enumerate(_parts(state)):
        total = total + (part * (part.detach().sin() + place + 1)).sum()
    return total


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("layer", LAYERS)
def test_it_equals_torch_forward_final_state_and_every_gradient(layer, given, backend):
    ours = make(layer, backend)
    twin = torch_twin(ours)
    x, their_x = inputs().requires_grad_(), inputs().requires_grad_()
    state, their_state = (leaf(start(ours)), leaf(start(ours))) if given else (None, None)
    output, last = ours(x, state)
    stacked = None
    if given:
        stacked = tuple(part.unsqueeze(0) for part in _parts(their_state))
        stacked = stacked if isinstance(their_state, tuple) else stacked[0]
    their_output, their_last = twin(their_x, stacked)
    close(output, their_output)
    for part, theirs in zip(_parts(last), _parts(their_last), strict=True):
        assert part.shape == (B, H)
        close(part, theirs[0])
    weigh(output, last).backward()
    squeezed = tuple(part[0] for part in _parts(their_last))
    weigh(their_output, squeezed if isinstance(their_last, tuple) else squeezed[0]).backward()
    close(x.grad, their_x.grad)
    close(ours.weight_ih.grad, twin.weight_ih_l0.grad)
    close(ours.weight_hh.grad, twin.weight_hh_l0.grad)
    if isinstance(ours, LSTM | Elman):
        close(ours.bias.grad, twin.bias_ih_l0.grad)
    else:
        close(ours.bias_ih.grad, twin.bias_ih_l0.grad)
        close(ours.bias_hh.grad, twin.bias_hh_l0.grad)
    if given:
        for part, theirs in zip(_parts(state), _parts(their_state), strict=True):
            close(part.grad, theirs.grad)


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("cut", [1, 3, T - 1])
@pytest.mark.parametrize("layer", LAYERS)
def test_two_pieces_are_the_whole(layer, cut, backend):
    ours, x = make(layer, backend), inputs()
    whole, last = ours(x)
    first, between = ours(x[:, :cut])
    second, end = ours(x[:, cut:], between)
    close(torch.cat([first, second], 1), whole)
    for part, other in zip(_parts(end), _parts(last), strict=True):
        close(part, other)


@pytest.mark.parametrize("layer", LAYERS)
def test_time_first_is_the_same_turned_round(layer):
    ours, turned = make(layer), make(layer, batch_first=False)
    x, state = inputs(), start(ours)
    output, last = ours(x, state)
    flipped, also_last = turned(x.transpose(0, 1), state)
    close(flipped.transpose(0, 1), output)
    for part, other in zip(_parts(last), _parts(also_last), strict=True):
        close(part, other)


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_last_output_alone_is_that_of_a_call(layer, batch_first, backend):
    made = layer(F, H, batch_first=batch_first, backend=backend)
    x = torch.randn(B, T, F) if batch_first else torch.randn(T, B, F)
    last = made(x)[0].movedim(0 if batch_first else 1, 0)[:, -1]
    torch.testing.assert_close(made.final(x), last)
    seen = []
    made.register_forward_hook(lambda module, given, output: seen.append(output[0].shape))
    torch.testing.assert_close(made.final(x), last)
    assert seen == [made(x)[0].shape] * 2, "who listens hears all steps"


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_are_the_slopes(layer):
    ours = make(layer, "eager")
    state = leaf(start(ours))
    names, tensors = zip(*ours.named_parameters(), strict=True)

    def run(x, *rest):
        count = len(_parts(state))
        given = rest[:count] if isinstance(state, tuple) else rest[0]
        weights = dict(zip(names, rest[count:], strict=True))
        output, last = torch.func.functional_call(ours, weights, (x, given))
        return output, *_parts(last)

    assert torch.autograd.gradcheck(run, (inputs(3).requires_grad_(), *_parts(state), *tensors))


@pytest.mark.parametrize("layer", LAYERS)
def test_copies_pickles_and_state_dicts_give_the_same_numbers(layer):
    ours, x = make(layer), inputs()
    output, _ = ours(x)
    other = layer(F, H, dtype=torch.float64)
    assert not torch.equal(other(x)[0], output)
    other.load_state_dict(ours.state_dict())
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), other):
        assert torch.equal(again(x)[0], output)
        assert again.weight_ih is not ours.weight_ih


@pytest.mark.parametrize("layer", LAYERS)
def test_dtype_and_device_are_those_asked_for(layer):
    ours = layer(F, H, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in ours.parameters()} == {("meta", torch.float16)}
    assert layer(F, H)(torch.zeros(1, 1, F))[0].dtype == torch.float32


@pytest.mark.parametrize("layer", LAYERS)
def test_start_values_are_those_of_keras(layer):
    torch.manual_seed(0)
    ours = layer(30, 20)
    gates = len(ours.weight_hh) // 20
    torch.testing.assert_close(ours.weight_hh.T @ ours.weight_hh, torch.eye(20), atol=1e-5, rtol=0)
    bound = (6 / (30 + 20 * gates)) ** 0.5
    assert 0.9 * bound < ours.weight_ih.abs().max() <= bound
    biases = torch.cat([p.detach() for name, p in ours.named_parameters() if "bias" in name])
    ones = [*range(20, 40)] if isinstance(ours, LSTM) else []
    assert biases.nonzero().flatten().tolist() == ones and bool((biases[ones] == 1).all())


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("shape", [(B, T, F + 1), (B, T), (B, T, F, 1)])
def test_a_wrong_input_is_told_both_shapes(layer, shape):
    with pytest.raises(ValueError) as caught:
        make(layer)(torch.zeros(shape, dtype=torch.float64))
    assert f"(batch, time, {F})" in str(caught.value) and str(tuple(shape)) in str(caught.value)
    with pytest.raises(ValueError, match=r"\(time, batch, "):
        make(layer, batch_first=False)(torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_wrong_state_is_told_both_shapes(layer):
    ours = make(layer)
    wrong = start(ours)
    wrong = tuple(part[:1] for part in wrong) if isinstance(wrong, tuple) else wrong[:1]
    with pytest.raises(ValueError) as caught:
        ours(inputs(), wrong)
    assert str((B, H)) in str(caught.value) and str((1, H)) in str(caught.value)
    with pytest.raises(ValueError, match="wants a state of"):
        ours(inputs(), (torch.zeros(B, H),) * 3)


@pytest.mark.parametrize("layer", LAYERS)
def test_wrong_sizes_and_backends_are_refused(layer):
    with pytest.raises(ValueError, match="input_size must be at least 1, not 0"):
        layer(0, 3)
    with pytest.raises(ValueError, match="hidden_size must be at least 1, not -1"):
        layer(3, -1)
    with pytest.raises(ValueError, match="backend is 'auto', 'native', 'fused', 'compiled' or 'eager', not 'fast'"):
        layer(3, 3, backend="fast")


def test_a_cell_of_ones_own_needs_three_functions_only():
    class Sum(Recurrent):
        def initial_state(self, batch, like):
            return like.new_zeros(batch, self.hidden_size)

        def constants(self):
            return 2.0

        @staticmethod
        def step(constants, u, state):
            state = state + constants * u
            return state, -state

    output, state = Sum(F, F)(inputs())
    close(output, -2 * inputs().cumsum(1))
    close(state, 2 * inputs().sum(1))
