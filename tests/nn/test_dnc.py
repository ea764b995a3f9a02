"""The DNC against a slow one written from the paper: one sample, one slot, one head at a time, float64."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnarena.nn.dnc import DNC, State, allocation, lookup, unit
from nnarena.nn.lstm import LSTM

B, T, F, OUT, H, N, W, R = 3, 6, 2, 3, 5, 4, 3, 2
SIZES = {"hidden_size": H, "slots": N, "width": W, "reads": R}
EPSILON = 1e-6


def make(spread=0.5, **more) -> DNC:
    torch.manual_seed(0)
    layer = DNC(F, OUT, **(SIZES | more), dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return layer


def inputs(steps=T, batch=B, seed=1) -> torch.Tensor:
    return torch.randn(batch, steps, F, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def busy_state(layer: DNC, batch=B) -> State:
    """A state such as occurs after some steps."""
    with torch.no_grad():
        state = layer(inputs(4, batch, seed=2))[1]
    return State(*(part.clone() for part in state))


def close(a, b, **more):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, **more)


def weigh(output, state):
    """A scalar in which every output and every part of the final state counts differently."""
    total = (output * torch.arange(1, output.numel() + 1, dtype=output.dtype).reshape(output.shape).cos()).sum()
    for place, part in enumerate(state):
        total = total + (part * (part.detach().sin() + place + 1)).sum()
    return total


# The slow one -------------------------------------------------------------------------------------------------------


def softplus(x):
    return torch.log1p(torch.exp(x))


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def softmax(values):
    powers = [torch.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def cosine(a, b):
    def length(vector):
        return torch.sqrt(torch.clamp((vector * vector).sum(), min=EPSILON))

    return (a * b).sum() / (length(a) * length(b))


def content(memory, key, beta):
    """Beta passes softplus a second time here, as published."""
    return softmax([softplus(beta) * cosine(row, key) for row in memory])


def slow_step(weights, x, state: dict, clip):
    """One step of one sample."""
    old = state
    seen = torch.cat([x, *old["vectors"]])
    gates = weights["controller.weight_ih"] @ seen + weights["controller.weight_hh"] @ old["h"]
    gates = gates + weights["controller.bias"]
    i, f, g, o = gates[:H], gates[H : 2 * H], gates[2 * H : 3 * H], gates[3 * H :]
    c = sigmoid(f) * old["c"] + sigmoid(i) * torch.tanh(g)
    h = sigmoid(o) * torch.tanh(c)
    shown = torch.clamp(h, -clip, clip)

    interface = list(weights["interface.weight"] @ shown + weights["interface.bias"])

    def take(count):
        taken = torch.stack(interface[:count])
        del interface[:count]
        return taken

    read_keys = [take(W) for _ in range(R)]
    read_strengths = 1 + softplus(take(R))
    write_key, write_strength = take(W), 1 + softplus(take(1))[0]
    erase, data, free = sigmoid(take(W)), take(W), sigmoid(take(R))
    allocation_gate, write_gate = sigmoid(take(1))[0], sigmoid(take(1))[0]
    modes = [softmax(take(3)) for _ in range(R)]
    assert not interface

    usage = []
    for n in range(N):
        retention = 1.0
        for r in range(R):
            retention = retention * (1 - free[r] * old["read"][r][n])
        usage.append((old["usage"][n] + old["write"][n] - old["usage"][n] * old["write"][n]) * retention)
    safe = [(1 - EPSILON) * u + EPSILON for u in usage]
    free_list = sorted(range(N), key=lambda n: float(safe[n].detach()))  # Python's sort keeps the order of equals
    allocated: list = [None] * N
    product = torch.ones((), dtype=x.dtype)
    for n in free_list:
        allocated[n] = (1 - safe[n]) * product
        product = product * safe[n]

    found = content(old["memory"], write_key, write_strength)
    write = [write_gate * (allocation_gate * allocated[n] + (1 - allocation_gate) * found[n]) for n in range(N)]
    memory = [old["memory"][n] * (1 - write[n] * erase) + write[n] * data for n in range(N)]

    zero = torch.zeros((), dtype=x.dtype)
    links = [
        [
            zero if n == m else (1 - write[n] - write[m]) * old["links"][n][m] + write[n] * old["precedence"][m]
            for m in range(N)
        ]
        for n in range(N)
    ]
    precedence = [(1 - sum(write)) * old["precedence"][n] + write[n] for n in range(N)]

    read, vectors = [], []
    for r in range(R):
        found = content(memory, read_keys[r], read_strengths[r])
        weighting = []
        for n in range(N):
            backward = sum(links[m][n] * old["read"][r][m] for m in range(N))
            forward = sum(links[n][m] * old["read"][r][m] for m in range(N))
            weighting.append(modes[r][0] * backward + modes[r][1] * found[n] + modes[r][2] * forward)
        read.append(weighting)
        vectors.append(sum(weighting[n] * memory[n] for n in range(N)))
    y = weights["head.weight"] @ torch.cat([shown, *vectors]) + weights["head.bias"]
    new = {"h": h, "c": c, "memory": memory, "usage": usage, "links": links, "precedence": precedence}
    return new | {"write": write, "read": read, "vectors": vectors}, torch.clamp(y, -clip, clip)


def pile(nested):
    return torch.stack([pile(item) for item in nested]) if isinstance(nested, list) else nested


def slow(weights, x_BTF, state, clip):
    outputs, states = [], []
    for b, sample in enumerate(x_BTF):
        now = {name: part[b] for name, part in state._asdict().items()}
        answers = []
        for x in sample:
            now, y = slow_step(weights, x, now, clip)
            answers.append(y)
        outputs.append(torch.stack(answers))
        states.append(now)
    return torch.stack(outputs), State(*(torch.stack([pile(now[name]) for now in states]) for name in State._fields))


@pytest.mark.parametrize("clip", [20.0, 0.4], ids=["published clip", "tight clip"])
@pytest.mark.parametrize("fresh", [True, False], ids=["from the start", "from a state"])
def test_it_equals_the_slow_one_forward_final_state_and_every_gradient(fresh, clip):
    layer = make(clip=clip)
    x, their_x = inputs().requires_grad_(), inputs().requires_grad_()
    begin = layer.initial_state(B, x) if fresh else busy_state(layer)
    state, their_state = (State(*(part.clone().requires_grad_() for part in begin)) for _ in range(2))
    weights = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    output, last = layer(x, state)
    slowly, their_last = slow(weights, their_x, their_state, clip)
    close(output, slowly)
    assert bool((output.abs() == clip).any()) == (clip < 1)  # the tight one does bite
    for name, part, theirs in zip(State._fields, last, their_last, strict=True):
        close(part, theirs, msg=name)
    weigh(output, last).backward()
    weigh(slowly, their_last).backward()
    torch.testing.assert_close(x.grad, their_x.grad, rtol=1e-7, atol=1e-9)
    for name, part, theirs in zip(State._fields, state, their_state, strict=True):
        torch.testing.assert_close(part.grad, theirs.grad, rtol=1e-7, atol=1e-9, msg=name)
    for name, parameter in layer.named_parameters():
        assert bool(parameter.grad.any()), name
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-7, atol=1e-9, msg=name)


def test_it_starts_as_published():
    state = make().initial_state(B, inputs())
    small = {"memory", "write", "read", "vectors"}
    for name, part in state._asdict().items():
        assert bool((part == (EPSILON if name in small else 0)).all()), name


# What the paper promises of the parts -------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.1, 1.0, 5.0, 30.0]),
    slots=st.integers(1, 6),
    reads=st.integers(1, 3),
    steps=st.integers(1, 12),
)
def test_weightings_and_links_are_shares(seed, spread, slots, reads, steps):
    torch.manual_seed(seed)
    layer = DNC(F, OUT, hidden_size=3, slots=slots, width=2, reads=reads, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
        state, x = None, 3 * inputs(steps, seed=seed)
        for t in range(steps):
            _, state = layer(x[:, t : t + 1], state)
            assert isinstance(state, State)
            rows, columns = state.links.sum(2), state.links.sum(1)
            for share in (state.write, state.read, state.precedence, state.links, state.usage):
                assert share.min() >= -1e-12
            for total in (state.write.sum(-1), state.read.sum(-1), state.precedence.sum(-1), rows, columns):
                assert total.max() <= 1 + 1e-9
            assert state.usage.max() <= 1 + 1e-12
            assert not torch.diagonal(state.links, dim1=1, dim2=2).any()


def earlier(count):
    return torch.ones(count, count).tril(-1) > 0


def test_allocation_prefers_free_slots():
    usage = torch.tensor([[0.9, 0.0, 0.5, 1.0], [1.0, 1.0, 1.0, 0.2], [0.3, 0.3, 0.3, 0.3]], dtype=torch.float64)
    shares = allocation(usage, earlier(4))
    assert shares[0].argmax() == 1 and shares[0, 1] > 0.99999
    assert shares[1].argmax() == 3 and not shares[1, :3].any()
    torch.testing.assert_close(
        shares[2], torch.tensor([0.7, 0.21, 0.063, 0.0189], dtype=torch.float64), rtol=1e-4, atol=0
    )
    assert not allocation(torch.ones(1, 4), earlier(4)).any()  # a full memory has nothing to give


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_allocation_is_the_sorted_product(numbers):
    usage = torch.tensor([numbers], dtype=torch.float64)
    safe = (1 - EPSILON) * usage[0] + EPSILON
    wanted, product = torch.zeros(len(numbers), dtype=torch.float64), 1.0
    for n in sorted(range(len(numbers)), key=lambda n: float(safe[n])):
        wanted[n] = (1 - safe[n]) * product
        product *= float(safe[n])
    torch.testing.assert_close(allocation(usage, earlier(len(numbers)))[0], wanted, rtol=1e-9, atol=1e-14)


def test_lookup_finds_the_row_that_points_the_same_way():
    memory = torch.eye(3, dtype=torch.float64).unsqueeze(0)
    keys = torch.tensor([[[0.0, 5.0, 0.0], [0.1, 0.0, 9.0]]], dtype=torch.float64)
    shares = lookup(memory, keys, torch.tensor([[50.0, 50.0]], dtype=torch.float64))[0]
    assert shares.argmax(-1).tolist() == [1, 2] and shares.max(-1).values.min() > 0.999
    assert not unit(torch.zeros(3)).any()  # no number divided by zero


def test_the_order_of_the_slots_means_nothing():
    layer, x = make(), inputs()
    state, order = busy_state(layer), torch.tensor([2, 0, 3, 1])
    turned = state._replace(
        memory=state.memory[:, order],
        usage=state.usage[:, order],
        links=state.links[:, order][:, :, order],
        precedence=state.precedence[:, order],
        write=state.write[:, order],
        read=state.read[..., order],
    )
    close(layer(x, turned)[0], layer(x, state)[0])


# What every recurrent layer promises --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 3, T - 1])
def test_two_pieces_are_the_whole(cut):
    layer, x = make(), inputs()
    whole, last = layer(x)
    first, between = layer(x[:, :cut])
    second, end = layer(x[:, cut:], between)
    assert whole.shape == (B, T, OUT)
    close(torch.cat([first, second], 1), whole)
    for part, other in zip(end, last, strict=True):
        close(part, other)


def test_it_is_causal_and_time_first_is_the_same_turned_round():
    layer, x = make(), inputs()
    other = x.clone()
    other[:, 3:] = 7
    assert torch.equal(layer(other)[0][:, :3], layer(x)[0][:, :3])
    assert not torch.allclose(layer(other)[0][:, 3], layer(x)[0][:, 3])
    turned = make(batch_first=False)
    close(turned(x.transpose(0, 1))[0].transpose(0, 1), layer(x)[0])


def test_the_order_of_samples_means_nothing_and_a_sample_alone_is_the_same():
    layer, x = make(), inputs()
    order = torch.tensor([2, 0, 1])
    close(layer(x[order])[0], layer(x)[0][order])
    close(layer(x[1:2])[0][0], layer(x)[0][1])


def test_gradients_are_the_slopes():
    layer = DNC(F, 2, hidden_size=2, slots=3, width=2, reads=1, dtype=torch.float64)
    state = tuple(part.requires_grad_() for part in busy_state(layer, 2))
    names, tensors = zip(*layer.named_parameters(), strict=True)

    def run(x, *rest):
        weights = dict(zip(names, rest[len(state) :], strict=True))
        output, last = torch.func.functional_call(layer, weights, (x, rest[: len(state)]))
        return output, *last

    assert torch.autograd.gradcheck(run, (inputs(2, 2).requires_grad_(), *state, *tensors), fast_mode=True)


def test_copies_pickles_and_state_dicts_give_the_same_numbers():
    layer, x = make(), inputs()
    other = DNC(F, OUT, **SIZES, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    for again in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(x)[0], layer(x)[0])


def test_it_maps_over_a_population():
    """Many sets of weights at once give what each gives alone."""
    layers, x = [make(spread) for spread in (0.1, 0.5)], inputs()
    weights = {
        name: torch.stack([dict(each.named_parameters())[name] for each in layers])
        for name in dict(layers[0].named_parameters())
    }
    outputs = torch.vmap(lambda w: torch.func.functional_call(layers[0], w, (x,))[0])(weights)
    for output, layer in zip(outputs, layers, strict=True):
        close(output, layer(x)[0])


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"slots": 0}, "slots must be at least 1, not 0"),
        ({"width": -1}, "width must be at least 1, not -1"),
        ({"reads": 0}, "reads must be at least 1, not 0"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, not 0"),
        ({"output_size": 0}, "output_size must be at least 1, not 0"),
        ({"clip": 0.0}, "clip must be above 0 .* not 0.0"),
        ({"clip": math.nan}, "clip must be above 0 .* not nan"),
        ({"backend": "fast"}, "'auto', 'native', 'fused', 'compiled' or 'eager', not 'fast'"),
    ],
)
def test_wrong_sizes_are_sentences(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        DNC(**({"input_size": F, "output_size": OUT} | sizes))


def test_wrong_inputs_and_states_are_told_both_shapes():
    layer = make()
    with pytest.raises(ValueError, match=r"DNC reads \(batch, time, 2\), not \(3, 5, 9\)"):
        layer(torch.zeros(3, 5, 9, dtype=torch.float64))
    with pytest.raises(ValueError, match="DNC wants a state of"):
        layer(inputs(), tuple(layer.initial_state(B + 1, inputs())))
    with pytest.raises(ValueError, match="takes no timespans"):
        layer(inputs(), timespans=torch.ones(B, T))


# What it is for ------------------------------------------------------------------------------------------------------


class Reader(torch.nn.Module):
    """An LSTM with a dense layer, for comparison."""

    def __init__(self, features: int, units: int, outputs: int) -> None:
        super().__init__()
        self.layer, self.head = LSTM(features, units), torch.nn.Linear(units, outputs)

    def forward(self, x):
        return self.head(self.layer(x)[0]), None


def copy_task(batch: int, length: int, bits: int, generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`length` words of `bits`, a mark, then silence in which the words are to be said again."""
    words = torch.randint(0, 2, (batch, length, bits), generator=generator).float()
    x = torch.zeros(batch, 2 * length + 1, bits + 1)
    x[:, :length, :bits] = words
    x[:, length, bits] = 1
    return x, words


def learn_to_copy(net: torch.nn.Module, longest: int, steps: int, bits: int, lengths: tuple[int, ...]) -> list[float]:
    """Trains on up to `longest` words; the share of wrong bits at each of `lengths`."""
    generator = torch.Generator().manual_seed(4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(steps):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        x, words = copy_task(32, length, bits, generator)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(x)[0][:, length + 1 :], words)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
    errors = []
    with torch.no_grad():
        for length in lengths:
            x, words = copy_task(256, length, bits, generator)
            errors.append(float(((net(x)[0][:, length + 1 :] > 0) != (words > 0.5)).float().mean()))
    return errors


@pytest.mark.slow
def test_it_copies_longer_lists_than_it_ever_saw_where_an_lstm_of_its_size_does_not():
    bits, longest, steps, lengths = 4, 6, 1500, (4, 10)
    torch.manual_seed(3)
    dnc, lstm = DNC(bits + 1, bits, hidden_size=24, slots=16, width=8, reads=1), Reader(bits + 1, 36, bits)
    assert sum(p.numel() for p in dnc.parameters()) <= sum(p.numel() for p in lstm.parameters())
    seen, unseen = learn_to_copy(dnc, longest, steps, bits, lengths)
    _, lost = learn_to_copy(lstm, longest, steps, bits, lengths)
    assert seen < 0.01 and unseen < 0.05 and lost > 0.2, (seen, unseen, lost)
