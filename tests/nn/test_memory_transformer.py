"""The memory-augmented transformer against a slow one: one sample, one token, one head at a time, float64."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from nnarena.nn.memory_transformer import MemoryAugmentedTransformer
from nnarena.nn.transformer import sinusoids

B, T, F, OUT = 3, 5, 2, 3
SIZES = {"rows": 3, "columns": 2, "d_model": 4, "nhead": 2, "dim_feedforward": 5}


def make(**more) -> MemoryAugmentedTransformer:
    torch.manual_seed(0)
    layer = MemoryAugmentedTransformer(F, OUT, **(SIZES | more), dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def inputs(steps=T, batch=B) -> torch.Tensor:
    return torch.randn(batch, steps, F, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def some_memory(layer, batch=B) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(batch, layer.rows, layer.columns, dtype=torch.float64, generator=generator)


def close(a, b, **more):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, **more)


def wave(position: int, width: int) -> torch.Tensor:
    angles = [position / 10_000 ** (2 * (place // 2) / width) for place in range(width)]
    numbers = [math.cos(angle) if place % 2 else math.sin(angle) for place, angle in enumerate(angles)]
    return torch.tensor(numbers, dtype=torch.float64)


def slow(weights, x_BTF, memory_BNC, *, rows, columns, d_model, nhead, dim_feedforward):
    def linear(name, vector):
        return torch.einsum("oi,i->o", weights[f"{name}.weight"], vector) + weights[f"{name}.bias"]

    def norm(vector):
        centred = vector - vector.sum() / d_model
        scaled = centred / torch.sqrt((centred**2).sum() / d_model + 1e-6)
        return scaled * weights["norm.weight"] + weights["norm.bias"]

    def attend(token, tokens):
        q = linear("attention.query", token)
        keys = [linear("attention.key", other) for other in tokens]
        values = [linear("attention.value", other) for other in tokens]
        heads = []
        for head in range(nhead):
            part = slice(head * d_model, (head + 1) * d_model)
            powers = [torch.exp((q[part] * key[part]).sum() / math.sqrt(d_model)) for key in keys]
            heads.append(sum(p / sum(powers) * value[part] for p, value in zip(powers, values, strict=True)))
        return linear("attention.output", torch.cat(heads))

    answers, memories = [], []
    for sample, start in zip(x_BTF, memory_BNC, strict=True):
        memory, said = list(start), []
        for frame in sample:
            tokens = [linear("embed", frame), *(linear("embed_memory", row) for row in memory)]
            tokens = [token + wave(place, d_model) for place, token in enumerate(tokens)]
            tokens = [norm(token + attend(token, tokens)) for token in tokens]
            tokens = [
                norm(token + linear("feedforward.2", torch.clamp(linear("feedforward.0", token), min=0)))
                for token in tokens
            ]
            said.append(linear("head", tokens[0]))
            for place in range(rows):
                wish = linear("write", tokens[1 + place])
                keep = 1 / (1 + torch.exp(wish[0]))
                memory[place] = keep * memory[place] + (1 - keep) * wish[1 : 1 + columns]
        answers.append(torch.stack(said))
        memories.append(torch.stack(memory))
    return torch.stack(answers), torch.stack(memories)


@pytest.mark.parametrize("fresh", [True, False], ids=["from the start", "from a memory"])
def test_it_equals_the_slow_one_forward_final_state_and_every_gradient(fresh):
    layer = make()
    x, their_x = inputs().requires_grad_(), inputs().requires_grad_()
    begin = layer.initial_state(B, x) if fresh else some_memory(layer)
    state, their_state = (begin.clone().requires_grad_() for _ in range(2))
    weights = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    output, last = layer(x, state)
    slowly, their_last = slow(weights, their_x, their_state, **SIZES)
    close(output, slowly)
    close(last, their_last)
    ((output**2).sum() + last.sin().sum()).backward()
    ((slowly**2).sum() + their_last.sin().sum()).backward()
    for ours, theirs in ((x, their_x), (state, their_state)):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-7, atol=1e-9, msg=name)
        assert name == "attention.key.bias" or parameter.grad.abs().max() > 1e-6, name


def test_its_block_is_the_attention_of_the_transformer():
    """The cell makes attention of numbers and places; the module it keeps the weights in says the same of tokens."""
    layer = make()
    state, x = some_memory(layer), inputs(1)
    places = sinusoids(torch.arange(1 + layer.rows, dtype=torch.float64), layer.d_model)
    z = torch.cat([layer.embed(x), layer.embed_memory(state)], 1) + places
    z = layer.norm(z + layer.attention(z, z))
    z = layer.norm(z + layer.feedforward(z))
    gate, data = layer.write(z[:, 1:]).tensor_split([1], -1)
    output, last = layer(x, state)
    close(output[:, 0], layer.head(z[:, 0]))
    close(last, (-gate).sigmoid() * state + gate.sigmoid() * data)


def test_the_memory_starts_small_and_all_rows_alike():
    assert bool((make().initial_state(B, inputs()) == 1e-6).all())


@pytest.mark.parametrize("cut", [1, 3, T - 1])
def test_two_pieces_are_the_whole(cut):
    layer, x = make(), inputs()
    whole, last = layer(x)
    first, between = layer(x[:, :cut])
    second, end = layer(x[:, cut:], between)
    assert whole.shape == (B, T, OUT) and last.shape == (B, 3, 2)
    close(torch.cat([first, second], 1), whole)
    close(end, last)


def test_it_is_causal_and_time_first_is_the_same_turned_round():
    layer, x = make(), inputs()
    other = x.clone()
    other[:, 3:] = 7
    assert torch.equal(layer(other)[0][:, :3], layer(x)[0][:, :3])
    assert not torch.allclose(layer(other)[0][:, 3], layer(x)[0][:, 3])
    turned = make(batch_first=False)
    close(turned(x.transpose(0, 1))[0].transpose(0, 1), layer(x)[0])


def test_what_was_seen_first_still_counts_at_the_end():
    layer, x = make(), inputs()
    other = x.clone()
    other[:, 0] += 1
    assert not torch.allclose(layer(other)[0][:, -1], layer(x)[0][:, -1], rtol=0, atol=1e-8)


def test_the_order_of_samples_means_nothing_and_a_sample_alone_is_the_same():
    layer, x = make(), inputs()
    order = torch.tensor([2, 0, 1])
    close(layer(x[order])[0], layer(x)[0][order])
    close(layer(x[1:2])[0][0], layer(x)[0][1])


def test_gradients_are_the_slopes():
    layer = MemoryAugmentedTransformer(F, 1, rows=2, columns=1, d_model=2, nhead=1, dim_feedforward=2).double()
    names, tensors = zip(*layer.named_parameters(), strict=True)

    def run(x, state, *rest):
        return torch.func.functional_call(layer, dict(zip(names, rest, strict=True)), (x, state))

    state = some_memory(layer, 2).requires_grad_()
    assert torch.autograd.gradcheck(run, (inputs(2, 2).requires_grad_(), state, *tensors), fast_mode=True)


def test_copies_pickles_and_state_dicts_give_the_same_numbers():
    layer, x = make(), inputs()
    other = MemoryAugmentedTransformer(F, OUT, **SIZES, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    for again in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"rows": 0}, "rows must be at least 1, not 0"),
        ({"columns": -2}, "columns must be at least 1, not -2"),
        ({"d_model": 5}, "d_model must be even .* not 5"),
        ({"nhead": 0}, "nhead must be at least 1, not 0"),
        ({"dim_feedforward": 0}, "dim_feedforward must be at least 1, not 0"),
        ({"input_size": 0}, "input_size must be at least 1, not 0"),
        ({"output_size": 0}, "output_size must be at least 1, not 0"),
    ],
)
def test_wrong_sizes_are_sentences(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        MemoryAugmentedTransformer(**({"input_size": F, "output_size": OUT} | sizes))


def test_wrong_inputs_and_states_are_told_both_shapes():
    layer = make()
    with pytest.raises(ValueError, match=r"MemoryAugmentedTransformer reads \(batch, time, 2\), not \(3, 5, 9\)"):
        layer(torch.zeros(3, 5, 9, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"wants a state of \(3, 3, 2\) for this input, not \(3, 2, 3\)"):
        layer(inputs(), torch.zeros(3, 2, 3, dtype=torch.float64))
