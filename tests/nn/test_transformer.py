"""The transformer against a slow one: loops over samples and heads, softmax by hand, float64."""

from __future__ import annotations

import math

import pytest
import torch

from nnarena.nn import Transformer
from nnarena.nn.transformer import SHORT, attend, sinusoids

SIZES = [
    {"d_model": 4, "nhead": 1, "dim_feedforward": 3, "num_layers": 1},
    {"d_model": 6, "nhead": 3, "dim_feedforward": 5, "num_layers": 2},
]
B, T, F, OUT = 3, 5, 2, 4


def make(**sizes) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(F, OUT, **sizes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def wave(position: float, width: int) -> list[float]:
    """The positions of Vaswani et al., one number after the other."""
    angles = [position / 10_000 ** (2 * (place // 2) / width) for place in range(width)]
    return [math.cos(angle) if place % 2 else math.sin(angle) for place, angle in enumerate(angles)]


def slow(weights: dict[str, torch.Tensor], x_BTF, times, *, d_model, nhead, num_layers, **_):
    """One sample, one layer, one head, one query at a time."""

    def linear(name, vector):
        return torch.einsum("oi,i->o", weights[f"{name}.weight"], vector) + weights[f"{name}.bias"]

    def norm(name, vector):
        centred = vector - vector.sum() / d_model
        scaled = centred / torch.sqrt((centred**2).sum() / d_model + 1e-6)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def attend(name, query, memory):
        q = linear(f"{name}.query", query)
        keys = [linear(f"{name}.key", token) for token in memory]
        values = [linear(f"{name}.value", token) for token in memory]
        heads = []
        for head in range(nhead):
            part = slice(head * d_model, (head + 1) * d_model)
            scores = torch.stack([(q[part] * key[part]).sum() / math.sqrt(d_model) for key in keys])
            shares = torch.exp(scores) / torch.exp(scores).sum()
            heads.append(sum(share * value[part] for share, value in zip(shares, values, strict=True)))
        return linear(f"{name}.output", torch.cat(heads))

    def feedforward(name, vector):
        return linear(f"{name}.feedforward.2", torch.clamp(linear(f"{name}.feedforward.0", vector), min=0))

    answers = []
    for sample, clock in zip(x_BTF, times, strict=True):
        memory = [
            linear("embed", frame) * math.sqrt(d_model) + frame.new_tensor(wave(float(time), d_model))
            for frame, time in zip(sample, clock, strict=True)
        ]
        for layer in range(num_layers):
            name = f"encoder.{layer}"
            seen = [norm(f"{name}.norm", t + attend(f"{name}.attention", t, memory)) for t in memory]
            memory = [norm(f"{name}.feedforward_norm", token + feedforward(name, token)) for token in seen]
        token = linear("embed_token", sample.new_ones(OUT)) * math.sqrt(d_model) + sample.new_tensor(wave(0.0, d_model))
        for layer in range(num_layers):
            name = f"decoder.{layer}"
            token = norm(f"{name}.norm", token + attend(f"{name}.attention", token, [token]))
            token = norm(f"{name}.memory_norm", token + attend(f"{name}.memory_attention", token, memory))
            token = norm(f"{name}.feedforward_norm", token + feedforward(name, token))
        answers.append(linear("head", token))
    return torch.stack(answers)


@pytest.mark.parametrize("timed", [False, True], ids=["steps", "timespans"])
@pytest.mark.parametrize("sizes", SIZES, ids=["small", "deep"])
def test_it_equals_the_slow_one_forward_and_every_gradient(sizes, timed):
    model = make(**sizes)
    x, timespans = torch.randn(B, T, F, dtype=torch.float64), torch.rand(B, T, dtype=torch.float64)
    x.requires_grad_()
    fast = model(x, timespans if timed else None)
    times = torch.cumsum(timespans, 1) if timed else [range(T)] * B
    their_x = x.detach().clone().requires_grad_()
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    slowly = slow(weights, their_x, times, **sizes)
    torch.testing.assert_close(fast, slowly, rtol=1e-9, atol=1e-11)
    (fast**2).sum().backward()
    (slowly**2).sum().backward()
    torch.testing.assert_close(x.grad, their_x.grad, rtol=1e-7, atol=1e-9)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.parametrize(("places", "asked"), [(7, 7), (1, 9), (SHORT, SHORT), (SHORT + 1, 5), (3, SHORT + 1)])
def test_attention_is_that_of_torch_at_any_length(places, asked):
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (asked, places, places))
    ours, theirs = attend(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(ours, theirs)
    pull = torch.randn_like(ours)
    for one, other in zip(*(torch.autograd.grad(out, (q, k, v), pull) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other)


def test_positions_are_the_formula():
    positions = torch.tensor([[0.0, 1.0, 2.5], [1000.0, -1.0, 7.0]], dtype=torch.float64)
    by_hand = torch.tensor([[wave(float(p), 10) for p in row] for row in positions], dtype=torch.float64)
    torch.testing.assert_close(sinusoids(positions, 10), by_hand, rtol=1e-11, atol=1e-11)


def test_steps_of_one_second_are_the_plain_positions_shifted_by_one():
    model, x = make(**SIZES[1]), torch.randn(B, T, F, dtype=torch.float64)
    ones = torch.ones(B, T, dtype=torch.float64)
    first_is_zero = ones.clone()
    first_is_zero[:, 0] = 0
    torch.testing.assert_close(model(x, first_is_zero), model(x))
    assert not torch.allclose(model(x, ones), model(x))


def test_the_order_of_steps_counts_and_that_of_samples_does_not():
    model, x = make(**SIZES[1]), torch.randn(B, T, F, dtype=torch.float64)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(model(x[order]), model(x)[order])
    assert not torch.allclose(model(x.flip(1)), model(x))


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"d_model": 5}, "d_model must be even .* not 5"),
        ({"nhead": 0}, "nhead must be at least 1, not 0"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"dim_feedforward": -1}, "dim_feedforward must be at least 1"),
    ],
)
def test_wrong_sizes_are_sentences(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Transformer(F, OUT, **sizes)


def test_a_wrong_input_is_told_both_shapes():
    with pytest.raises(ValueError, match=r"\(batch, time, 2\), not \(3, 5, 9\)"):
        make(**SIZES[0])(torch.zeros(3, 5, 9, dtype=torch.float64))
