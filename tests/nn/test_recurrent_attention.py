"""The transformers with recurrent attention against slow ones: one query, one value, one unit at a time, float64."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn import recurrent_attention
from nnarena.nn.recurrent_attention import (
    LSTMAttention,
    RecurrentAttentionTransformer,
    RecurrentAugmentedTransformer,
    UnitaryAttention,
)
from nnarena.nn.transformer import Transformer

B, T, F, OUT = 2, 4, 2, 3
CLASSES = [RecurrentAugmentedTransformer, RecurrentAttentionTransformer]
SIZES = [
    {"d_model": 4, "nhead": 1, "dim_feedforward": 3, "num_layers": 1},
    {"d_model": 4, "nhead": 2, "dim_feedforward": 5, "num_layers": 2},
]


def disturb(module, scale=0.3):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return module


def make(model, **sizes):
    torch.manual_seed(0)
    return disturb(model(F, OUT, **sizes).double())


def inputs(batch=B, steps=T, features=F) -> torch.Tensor:
    return torch.randn(batch, steps, features, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def close(a, b, **more):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, **more)


# The slow ones ------------------------------------------------------------------------------------------------------


def linear(weights, name, vector):
    return torch.einsum("oi,i->o", weights[f"{name}.weight"], vector) + weights[f"{name}.bias"]


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def slow_lstm(weights, name, vectors):
    """The last output over a list of vectors."""
    units = weights[f"{name}.weight_hh"].shape[1]
    h = c = vectors[0].new_zeros(units)
    for vector in vectors:
        gates = weights[f"{name}.weight_ih"] @ vector + weights[f"{name}.weight_hh"] @ h + weights[f"{name}.bias"]
        i, f, g, o = gates.split(units)
        c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
        h = sigmoid(o) * torch.tanh(c)
    return h


def slow_unitary(weights, name, vectors):
    """The real part of the last state over a list of vectors: rotations of neighbours, phases, modReLU."""
    theta, phi, omega = (weights[f"{name}.{part}"] for part in ("theta", "phi", "omega"))
    units, rounds = len(omega), len(theta)
    u = torch.complex(*weights[f"{name}.weight_ih"].split(units))
    state = [torch.zeros((), dtype=torch.complex128)] * units
    for vector in vectors:
        for pair_of_layers in range(rounds):
            for shift in (0, 1):
                for first in range(shift, units - 1, 2):
                    turn, phase = theta[pair_of_layers, first], torch.exp(1j * phi[pair_of_layers, first])
                    a, b = state[first], phase * state[first + 1]
                    state[first] = torch.cos(turn) * a - torch.sin(turn) * b
                    state[first + 1] = torch.sin(turn) * a + torch.cos(turn) * b
        push = u @ vector.to(u.dtype)
        for unit in range(units):
            z = torch.exp(1j * omega[unit]) * state[unit] + push[unit]
            norm = torch.sqrt(z.real**2 + z.imag**2) + 0.01
            state[unit] = z / norm * torch.clamp(norm + weights[f"{name}.bias"][unit], min=0)
    return torch.stack([unit.real for unit in state])


def slow_lstm_attention(weights, name, query, memory, *, d_model, nhead):
    q = linear(weights, f"{name}query", query)
    keys = [linear(weights, f"{name}key", token) for token in memory]
    values = [linear(weights, f"{name}value", token) for token in memory]
    heads = []
    for head in range(nhead):
        part = slice(head * d_model, (head + 1) * d_model)
        powers = [torch.exp((q[part] * key[part]).sum() / math.sqrt(d_model)) for key in keys]
        weighted = [p / sum(powers) * value[part] for p, value in zip(powers, values, strict=True)]
        heads.append(slow_lstm(weights, f"{name}readers.{head}", weighted))
    return linear(weights, f"{name}output", torch.cat(heads))


def slow_unitary_attention(weights, name, query, memory, *, d_model, nhead):
    pairs = [torch.cat([query, token]) for token in memory]
    heads = [slow_unitary(weights, f"{name}readers.{head}", pairs) for head in range(nhead)]
    return linear(weights, f"{name}output", torch.cat(heads))


SLOW = {LSTMAttention: slow_lstm_attention, UnitaryAttention: slow_unitary_attention}
SLOW |= {RecurrentAugmentedTransformer: slow_lstm_attention, RecurrentAttentionTransformer: slow_unitary_attention}


def wave(position: float, width: int) -> torch.Tensor:
    angles = [position / 10_000 ** (2 * (place // 2) / width) for place in range(width)]
    numbers = [math.cos(angle) if place % 2 else math.sin(angle) for place, angle in enumerate(angles)]
    return torch.tensor(numbers, dtype=torch.float64)


def slow(attention, weights, x_BTF, times, *, d_model, nhead, num_layers, **_):
    """The encoder-decoder, one sample and one token at a time."""

    def norm(name, vector):
        centred = vector - vector.sum() / d_model
        scaled = centred / torch.sqrt((centred**2).sum() / d_model + 1e-6)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def attend(name, query, memory):
        return attention(weights, f"{name}.", query, memory, d_model=d_model, nhead=nhead)

    def forward(name, token):
        wide = torch.clamp(linear(weights, f"{name}.feedforward.0", token), min=0)
        return norm(f"{name}.feedforward_norm", token + linear(weights, f"{name}.feedforward.2", wide))

    answers = []
    for sample, clock in zip(x_BTF, times, strict=True):
        memory = [
            linear(weights, "embed", frame) * math.sqrt(d_model) + wave(float(time), d_model)
            for frame, time in zip(sample, clock, strict=True)
        ]
        for layer in range(num_layers):
            name = f"encoder.{layer}"
            seen = [norm(f"{name}.norm", t + attend(f"{name}.attention", t, memory)) for t in memory]
            memory = [forward(name, token) for token in seen]
        token = linear(weights, "embed_token", sample.new_ones(OUT)) * math.sqrt(d_model) + wave(0.0, d_model)
        for layer in range(num_layers):
            name = f"decoder.{layer}"
            token = norm(f"{name}.norm", token + attend(f"{name}.attention", token, [token]))
            token = norm(f"{name}.memory_norm", token + attend(f"{name}.memory_attention", token, memory))
            token = forward(name, token)
        answers.append(linear(weights, "head", token))
    return torch.stack(answers)


@pytest.mark.parametrize("nhead", [1, 2])
@pytest.mark.parametrize("attention", [LSTMAttention, UnitaryAttention])
def test_the_attention_equals_the_slow_one_forward_and_every_gradient(attention, nhead):
    torch.manual_seed(0)
    width, queries, keys = 4, 3, 5
    layer = disturb(attention(width, nhead).double())
    ours = [inputs(B, steps, width).requires_grad_() for steps in (queries, keys)]
    theirs = [part.detach().clone().requires_grad_() for part in ours]
    weights = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    fast = layer(*ours)
    slowly = torch.stack(
        [
            torch.stack([SLOW[attention](weights, "", q, list(memory), d_model=width, nhead=nhead) for q in sample])
            for sample, memory in zip(*theirs, strict=True)
        ]
    )
    assert fast.shape == (B, queries, width)
    close(fast, slowly)
    (fast**2).sum().backward()
    (slowly**2).sum().backward()
    for part, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(part.grad, other.grad, rtol=1e-7, atol=1e-9)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-7, atol=1e-9, msg=name)
        assert name == "key.bias" or parameter.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize("timed", [False, True], ids=["steps", "timespans"])
@pytest.mark.parametrize("sizes", SIZES, ids=["small", "deep"])
@pytest.mark.parametrize("kind", CLASSES)
def test_it_equals_the_slow_one_forward_and_every_gradient(kind, sizes, timed):
    model, x, their_x = make(kind, **sizes), inputs().requires_grad_(), inputs().requires_grad_()
    timespans = torch.rand(B, T, dtype=torch.float64)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    fast = model(x, timespans if timed else None)
    slowly = slow(SLOW[kind], weights, their_x, timespans.cumsum(1) if timed else [range(T)] * B, **sizes)
    close(fast, slowly)
    (fast**2).sum().backward()
    (slowly**2).sum().backward()
    torch.testing.assert_close(x.grad, their_x.grad, rtol=1e-7, atol=1e-9)
    for name, parameter in model.named_parameters():
        theirs = weights[name].grad
        theirs = torch.zeros_like(parameter) if theirs is None else theirs
        torch.testing.assert_close(parameter.grad, theirs, rtol=1e-7, atol=1e-9, msg=name)


def test_reading_pairs_is_the_unitary_network_over_the_pairs_written_out():
    torch.manual_seed(0)
    reader = disturb(UnitaryAttention(4, 1).double()).readers[0]
    queries, values = inputs(B, 3, 4), inputs(B, 5, 4)
    written = torch.cat([queries[:, :, None].expand(-1, -1, 5, -1), values[:, None].expand(-1, 3, -1, -1)], -1)
    wanted = reader(written.flatten(0, 1))[0][:, -1].unflatten(0, (B, 3))
    close(recurrent_attention.read_pairs(reader, queries, values), wanted)


@pytest.mark.parametrize("attention", [LSTMAttention, UnitaryAttention])
def test_the_order_of_values_counts_here_and_one_value_gets_all_of_it(attention):
    torch.manual_seed(0)
    layer = disturb(attention(4, 2).double())
    queries, values = inputs(B, 3, 4), inputs(B, 5, 4)
    assert not torch.allclose(layer(queries, values.flip(1)), layer(queries, values))
    order = torch.tensor([1, 2, 0])
    close(layer(queries[:, order], values), layer(queries, values)[:, order])
    assert layer(queries, values[:, :1]).shape == (B, 3, 4)


@pytest.mark.parametrize("attention", [LSTMAttention, UnitaryAttention])
def test_gradients_are_the_slopes(attention):
    torch.manual_seed(0)
    layer = disturb(attention(4, 1).double())
    names, tensors = zip(*layer.named_parameters(), strict=True)

    def run(queries, values, *rest):
        return torch.func.functional_call(layer, dict(zip(names, rest, strict=True)), (queries, values))

    x = (inputs(1, 2, 4).requires_grad_(), inputs(1, 3, 4).requires_grad_())
    assert torch.autograd.gradcheck(run, (*x, *tensors), fast_mode=True)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_order_of_steps_counts_and_that_of_samples_does_not(kind):
    model, x = make(kind, **SIZES[1]), inputs(3)
    order = torch.tensor([2, 0, 1])
    close(model(x[order]), model(x)[order])
    close(model(x[1:2])[0], model(x)[1])
    assert not torch.allclose(model(x.flip(1)), model(x))


@pytest.mark.parametrize("kind", CLASSES)
def test_copies_pickles_and_state_dicts_give_the_same_numbers(kind):
    model, x = make(kind, **SIZES[1]), inputs()
    other = kind(F, OUT, **SIZES[1]).double()
    other.load_state_dict(model.state_dict())
    for again in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(x), model(x))


def test_any_attention_can_stand_in():
    """`Transformer` takes whatever makes a module of queries and memory."""

    class Last(torch.nn.Module):
        def __init__(self, d_model: int, nhead: int) -> None:
            super().__init__()

        def forward(self, x, memory):
            return memory[:, -1:].expand_as(x)

    model = make(Transformer, attention=Last)
    assert model(inputs()).shape == (B, OUT)
    assert not [name for name, _ in model.named_parameters() if "attention" in name]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"d_model": 5}, "d_model must be even .* not 5"),
        ({"nhead": 0}, "nhead must be at least 1, not 0"),
        ({"num_layers": 0}, "num_layers must be at least 1, not 0"),
        ({"dim_feedforward": -1}, "dim_feedforward must be at least 1, not -1"),
    ],
)
def test_wrong_sizes_are_sentences(kind, sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(F, OUT, **sizes)


def test_a_wrong_capacity_is_told_what_is_allowed():
    with pytest.raises(ValueError, match=r"capacity must be even, at least 2 and at most hidden_size \(8\), not 3"):
        RecurrentAttentionTransformer(F, OUT, capacity=3)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_wrong_input_is_told_both_shapes(kind):
    with pytest.raises(ValueError, match=rf"{kind.__name__} reads \(batch, time, 2\), not \(3, 5, 9\)"):
        make(kind, **SIZES[0])(torch.zeros(3, 5, 9, dtype=torch.float64))


@pytest.mark.parametrize(
    "competitor",
    [
        recurrent_attention.recurrent_network_augmented_transformer,
        recurrent_attention.recurrent_network_attention_transformer,
    ],
)
def test_a_task_that_wants_every_step_is_refused(competitor):
    with pytest.raises(Unfit, match="it decodes one token"):
        competitor(TaskSpec(input_shape=(4, 2), output_size=2, target="values", per_step=True))


@pytest.mark.parametrize("queries", [1, 5])
def test_reading_units_first_is_what_torchs_lstm_reads(queries):
    attention = make_attention()
    native = copy.deepcopy(attention)
    for reader in native.readers:
        reader.backend = "native"
    x, memory = inputs(3, queries, 4), inputs(3, 6, 4)
    close(attention(x, memory), native(x, memory))
    for name in dict(attention.named_parameters()):
        ours, theirs = (
            torch.autograd.grad(net(x, memory).square().sum(), dict(net.named_parameters())[name])[0]
            for net in (attention, native)
        )
        close(ours, theirs, msg=name)


def make_attention():
    torch.manual_seed(0)
    return disturb(LSTMAttention(4, 2).double())
