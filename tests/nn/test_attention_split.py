"""AttentionSplit is Algorithm 7, number for number, or its authors' code; and keeps what a recurrent layer promises."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch.autograd import gradcheck

import nnarena
from nnarena.kernels import recurrence
from nnarena.kernels.gpu.runtime import Loop
from nnarena.nn import AttentionSplit
from nnarena.nn.attention_split import AttentionSplitStack
from nnarena.nn.recurrent import _parts

# interpreted kernels: padding may hold anything, it is masked where it would count
pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered", "ignore:divide by zero", "ignore:overflow encountered"
)
B, T = 2, 4
CASES = {
    "printed": {},
    "released": {"variant": "released"},
    "gated": {"gated": True},
    "dot_product": {"attention": "dot_product"},
    "released, dot_product": {"variant": "released", "attention": "dot_product"},
    "gated, dot_product": {"gated": True, "attention": "dot_product"},
}
PRINTED = {"input": "rows", "hidden": "gelu of norm", "dropout": "memory", "context": "units", "memory": "after"}
RELEASED = {"input": "heads", "hidden": "norm of gelu", "dropout": "sum and context", "context": "sums"}
RELEASED["memory"] = "before"
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


# ------------------------------------------------------------------------------------- the algorithm in plain loops


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def selu(x):
    return SELU_SCALE * torch.where(x > 0, x, SELU_ALPHA * (x.exp() - 1))


def norm(row, layer):
    mean = sum(row) / len(row)
    variance = sum((number - mean) ** 2 for number in row) / len(row)
    return (row - mean) / torch.sqrt(variance + 1e-5) * layer.weight + layer.bias


def partitions(flat, heads):
    return torch.stack(list(flat.split(len(flat) // heads)))


def rows_of(frame, weight):
    """A frame as rows of h numbers, each times a matrix."""
    h = len(weight)
    rows = [frame[start : start + h] for start in range(0, len(frame), h)]
    return torch.stack([sum(row[k] * weight[k] for k in range(h)) for row in rows])


def encode_input(layer, frame, rule):
    encoded = rows_of(frame, layer.weight_ih)
    if rule == "rows":
        return partitions(torch.cat([gelu(norm(row, layer.norms["input"])) for row in encoded]), layer.heads)
    return torch.stack([gelu(norm(head, layer.norms["input"])) for head in partitions(encoded.flatten(), layer.heads)])


def encode_hidden(layer, frame, rule):
    encoded = rows_of(frame, layer.weight_hh)
    if rule == "gelu of norm":
        return partitions(torch.cat([gelu(norm(row, layer.norms["hidden"])) for row in encoded]), layer.heads)
    return torch.stack([norm(gelu(head), layer.norms["hidden"]) for head in partitions(encoded.flatten(), layer.heads)])


def context(layer, X, past, rule):
    """C_i before its GELU."""
    if layer.weight_attention is None:
        A = layer.weight_cell
        return torch.stack([(A[a] if rule == "units" else sum(A[a])) * past[a] for a in range(layer.heads)])
    W_q, W_k, W_v = layer.weight_attention
    heads = []
    for a in range(layer.heads):
        query = X[a] @ W_q[a]
        scores = torch.stack([query @ (past[b] @ W_k[a]) / math.sqrt(layer.units) for b in range(layer.heads)])
        shares = scores.exp() / scores.exp().sum()
        heads.append(sum(shares[b] * (past[b] @ W_v[a]) for b in range(layer.heads)))
    return torch.stack(heads)


def naive(layer, x, state=None, hidden=None, keep=None, keep_after=None, rules=None):
    """Output, last state and all memories of every sample, one number after the other."""
    rules = rules or (RELEASED if layer.variant == "released" else PRINTED)
    zeros = x.new_zeros(len(x), layer.heads, layer.units)
    state = _parts(state) if state is not None else (zeros, zeros)
    ones = x.new_ones(*x.shape[:2], layer.heads, layer.units)
    keep, keep_after = (ones if mask is None else mask for mask in (keep, keep_after))
    outputs, memories, ends = [], [], []
    for b in range(len(x)):
        C, M = state[0][b], state[-1][b]
        for i in range(x.shape[1]):
            X = encode_input(layer, x[b, i], rules["input"])
            R = 0 if hidden is None else encode_hidden(layer, hidden[b, i], rules["hidden"])
            past = C * keep[b, i] + R if rules["dropout"] == "memory" else (C + R) * keep[b, i]
            seen = gelu(context(layer, X, past, rules["context"]))
            total = X + (seen if rules["dropout"] == "memory" else seen * keep_after[b, i])
            if layer.gated:
                (W, U), bias = layer.weight_gates, layer.bias_gates
                gates = [torch.sigmoid(X[a] @ W[a] + C[a] @ U[a] + bias[a]).chunk(3) for a in range(layer.heads)]
                take, forget, show = (torch.stack(each) for each in zip(*gates, strict=True))
                total = M = forget * M + take * total
            Y = torch.stack([gelu(norm(head, layer.norms["cell"])) for head in total])
            Y = show * Y if layer.gated else Y
            C = selu(Y if rules["memory"] == "after" else total)
            memories.append(C.flatten())
            outputs.append(gelu(layer.output.weight @ Y.flatten() + layer.output.bias))
        ends.append((C, M) if layer.gated else (C,))
    last = tuple(torch.stack(part) for part in zip(*ends, strict=True))
    return *(torch.stack(each).view(*x.shape[:2], -1) for each in (outputs, memories)), *last


# --------------------------------------------------------------------------------------------------- the numbers


def make(input_size=8, hidden_size=12, heads=2, *, dtype=torch.float64, backend="eager", **options):
    torch.manual_seed(0)
    layer = AttentionSplit(input_size, hidden_size, heads, backend=backend, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def given(layer, steps=T):
    """Input, a state that is not the first, and a hidden sequence."""
    x = numbers(B, steps, layer.input_size)
    parts = tuple(numbers(*part.shape, seed=2) for part in _parts(layer.initial_state(B, x)))
    return x, parts if layer.gated else parts[0], numbers(B, steps, layer.hidden_size, seed=3)


def ours(layer, x, state=None, hidden=None):
    output, last, memories = layer(x, state, hidden=hidden, return_hidden=True)
    return output, memories, *_parts(last)


def weigh(results):
    return sum((part * numbers(*part.shape, seed=9 + place).to(part)).sum() for place, part in enumerate(results))


def gradients(call, layer, tensors):
    leaves = [None if tensor is None else tensor.clone().requires_grad_() for tensor in tensors]
    results = call(layer, leaves[0], leaves[1], leaves[2])
    wanted = [*(leaf for leaf in leaves if leaf is not None), *layer.parameters()]
    return results, torch.autograd.grad(weigh(results), wanted, allow_unused=True)


def close(a, b, **more):
    torch.testing.assert_close(a, b, **(more or {"rtol": 1e-9, "atol": 1e-11}))


@pytest.mark.parametrize("fed", [True, False], ids=["state and hidden", "alone"])
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_algorithm_in_plain_loops_with_every_gradient(case, fed):
    layer = make(**CASES[case])
    x, state, hidden = given(layer)
    if layer.gated:  # one tensor, so that it can be a leaf
        state = torch.stack(state)
    tensors = (x, state, hidden) if fed else (x, None, None)

    def unstacked(call):
        return lambda layer, x, state, hidden: call(
            layer, x, tuple(state) if layer.gated and state is not None else state, hidden
        )

    results, slopes = gradients(unstacked(ours), layer, tensors)
    exact, wanted = gradients(unstacked(naive), layer, tensors)
    for mine, theirs in zip(results, exact, strict=True):
        close(mine, theirs)
    assert sum(slope is not None for slope in slopes) > 6
    for mine, theirs in zip(slopes, wanted, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            close(mine, theirs)


def dropped(layer, x):
    """What is kept of memory and context in the next call after this seed."""
    constants = layer.constants()
    torch.manual_seed(5)
    parts = dict(zip(constants.given, layer.project(constants, x, None), strict=True))
    torch.manual_seed(5)
    return {name: parts[name] for name in ("keep", "keep_after") if name in parts}


@pytest.mark.parametrize("variant", ["printed", "released"])
def test_the_input_is_normed_along_rows_as_printed_and_along_heads_as_released(variant):
    layer = make(variant=variant)
    layer.norms["input"].reset_parameters()
    own, other = (PRINTED, RELEASED) if variant == "printed" else (RELEASED, PRINTED)
    x, state, hidden = given(layer)
    output = layer(x, state, hidden=hidden)[0]
    close(output, naive(layer, x, state, hidden, rules=own)[0])
    layer.norms["input"] = torch.nn.LayerNorm(6 if variant == "printed" else 3, dtype=torch.float64)
    assert (output - naive(layer, x, state, hidden, rules=own | {"input": other["input"]})[0]).abs().max() > 1e-2


@pytest.mark.parametrize("rule", ["hidden", "dropout", "context", "memory"])
@pytest.mark.parametrize("variant", ["printed", "released"])
def test_every_other_difference_of_the_variants_is_there(variant, rule):
    """In nine units and three heads all norms are three wide, so that each rule can be exchanged for the other's."""
    layer = make(9, 9, 3, variant=variant, dropout=0.4)
    x, state, hidden = given(layer)
    masks = dropped(layer, x)
    output = layer(x, state, hidden=hidden)[0]
    own, other = (PRINTED, RELEASED) if variant == "printed" else (RELEASED, PRINTED)
    masks.setdefault("keep_after", masks["keep"].flip(-1))
    close(output, naive(layer, x, state, hidden, **masks, rules=own)[0])
    changed = naive(layer, x, state, hidden, **masks, rules=own | {rule: other[rule]})[0]
    assert (output - changed).abs().max() > 1e-4


def test_the_released_layer_has_as_many_parameters_as_the_authors():
    for heads, count in ((4, 66_976), (8, 66_880)):
        layer = AttentionSplit(256, 256, heads, variant="released")
        assert sum(parameter.numel() for parameter in layer.parameters()) == count
    assert "unused" not in AttentionSplit(256, 256, 4).norms


def test_the_released_layer_uses_the_sums_of_the_rows_only():
    layer = make(variant="released")
    x, state, _ = given(layer)
    before = layer(x, state)[0]
    with torch.no_grad():
        layer.weight_cell.copy_(layer.weight_cell.flip(1))
    close(layer(x, state)[0], before)
    assert not torch.allclose(make()(x, state)[0], before)


@pytest.mark.parametrize("variant", ["printed", "released"])
def test_start_values_are_the_released_ones(variant):
    torch.manual_seed(0)
    F, H, h = 256, 512, 16
    layer = AttentionSplit(F, H, h, variant=variant)
    variances = {"weight_cell": 2 / H, "weight_ih": 2 / (H * h * h / F), "weight_hh": 2 / (H * h * h / F)}
    variances["output.weight"] = 2 / H**2
    for name, variance in variances.items():
        weights = layer.get_parameter(name)
        assert weights.var().item() == pytest.approx(variance, rel=8 / weights.numel() ** 0.5), name
        assert abs(weights.mean().item()) < 4 * (variance / weights.numel()) ** 0.5
    assert layer.output.bias.abs().max() <= H**-0.5


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_finite_differences(case):
    layer = make(4, 4, 2, **CASES[case])
    x, state, hidden = given(layer, 2)
    leaves = [leaf.requires_grad_() for leaf in (x, hidden, *_parts(state))]
    assert gradcheck(lambda x, hidden, *state: ours(layer, x, state if layer.gated else state[0], hidden), leaves)


# -------------------------------------------------------------------------------------------------- what it promises


@pytest.mark.parametrize("cut", [1, T - 1])
@pytest.mark.parametrize("case", CASES)
def test_two_pieces_are_the_whole(case, cut):
    layer = make(**CASES[case])
    x, state, hidden = given(layer)
    whole = ours(layer, x, state, hidden)
    output, memories, *between = ours(layer, x[:, :cut], state, hidden[:, :cut])
    rest = ours(layer, x[:, cut:], tuple(between) if layer.gated else between[0], hidden[:, cut:])
    close(torch.cat([output, rest[0]], 1), whole[0])
    close(torch.cat([memories, rest[1]], 1), whole[1])
    for part, other in zip(rest[2:], whole[2:], strict=True):
        close(part, other)


@pytest.mark.parametrize("case", CASES)
def test_the_last_memory_is_the_state(case):
    layer = make(**CASES[case])
    x, state, hidden = given(layer)
    _, memories, last, *_ = ours(layer, x, state, hidden)
    close(memories[:, -1].view_as(last), last)


def test_a_hidden_sequence_may_be_parted_into_heads():
    layer = make()
    x, state, hidden = given(layer)
    close(layer(x, state, hidden=hidden.unflatten(-1, (4, 3)))[0], layer(x, state, hidden=hidden)[0])


@pytest.mark.parametrize("case", CASES)
def test_samples_and_frames_do_not_blend(case):
    layer = make(**CASES[case])
    x, state, hidden = given(layer)
    output = layer(x, state, hidden=hidden)[0]
    turned = tuple(part.flip(0) for part in _parts(state))
    close(layer(x.flip(0), turned if layer.gated else turned[0], hidden=hidden.flip(0))[0], output.flip(0))
    later = x.clone()
    later[:, 2:] += 1
    close(layer(later, state, hidden=hidden)[0][:, :2], output[:, :2])


def test_time_first_is_the_same_turned_round():
    layer, other = make(), make(batch_first=False)
    x, state, hidden = given(layer)
    output, memories, last = ours(layer, x, state, hidden)
    turned = ours(other, x.transpose(0, 1), state, hidden.transpose(0, 1))
    close(turned[0].transpose(0, 1), output)
    close(turned[1].transpose(0, 1), memories)
    close(turned[2], last)


def test_dropout_acts_in_training_only():
    for variant in ("printed", "released"):
        layer, plain = make(variant=variant, dropout=0.5), make(variant=variant)
        x, state, hidden = given(layer)
        exact = plain(x, state, hidden=hidden)[0]
        assert not torch.allclose(layer(x, state, hidden=hidden)[0], exact)
        close(layer.eval()(x, state, hidden=hidden)[0], exact)


def test_gates_that_are_open_open_and_shut_leave_the_layer_as_it_is():
    gated, plain = make(gated=True), make()
    missing = plain.load_state_dict(gated.state_dict(), strict=False)
    assert not missing.missing_keys and set(missing.unexpected_keys) == {"weight_gates", "bias_gates"}
    with torch.no_grad():
        gated.weight_gates.zero_()
        gated.bias_gates.copy_(torch.tensor([60.0, -60.0, 60.0]).repeat_interleave(gated.units))
    x, (past, kept), hidden = given(gated)
    close(gated(x, (past, kept), hidden=hidden)[0], plain(x, past, hidden=hidden)[0])


def test_gates_that_are_shut_show_nothing_and_keep_everything():
    layer = make(gated=True)
    with torch.no_grad():
        layer.weight_gates.zero_()
        layer.bias_gates.copy_(torch.tensor([-60.0, 60.0, -60.0]).repeat_interleave(layer.units))
    x, state, hidden = given(layer)
    output, (past, kept) = layer(x, state, hidden=hidden)
    close(kept, state[1])
    assert past.abs().max() < 1e-20 and torch.allclose(output, output[:1, :1])


@pytest.mark.parametrize("case", CASES)
def test_it_copies_pickles_and_compiles(case):
    layer = make(**CASES[case])
    x, state, hidden = given(layer)
    exact = layer(x, state, hidden=hidden)[0]
    fresh = AttentionSplit(8, 12, 2, dtype=torch.float64, **CASES[case])
    fresh.load_state_dict(layer.state_dict())
    again = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh]
    assert all(torch.equal(other(x, state, hidden=hidden)[0], exact) for other in again)
    close(torch.compile(layer, backend="eager")(x, state, hidden=hidden)[0], exact)


def test_two_layers_of_the_thesis_pass_their_memories_on():
    torch.manual_seed(0)
    net = AttentionSplitStack(3, 16, 4).double()
    x = numbers(B, T, 3)
    output, _ = net(x)
    read, _, memories = net.first(gelu(net.embed(x)), return_hidden=True)
    close(output, net.second(read, hidden=memories)[0])
    assert not torch.allclose(output, net.second(read)[0])


@pytest.mark.parametrize("cut", [1, T - 1])
@pytest.mark.parametrize("case", CASES)
def test_two_pieces_of_two_layers_are_the_whole(case, cut):
    torch.manual_seed(0)
    net = AttentionSplitStack(3, 16, 2, **CASES[case]).double()
    x = numbers(B, T, 3)
    output, state = net(x)
    close(net(x, net.initial_state(B, x))[0], output)
    first, between = net(x[:, :cut])
    second, end = net(x[:, cut:], between)
    close(torch.cat([first, second], 1), output)
    close(end, state)
    assert not torch.allclose(net(x[:, cut:], (between[0], net.initial_state(B, x)[1]))[0], second)
    assert not torch.allclose(net(x[:, cut:], (net.initial_state(B, x)[0], between[1]))[0], second)


# ----------------------------------------------------------------------------------------------------- as one kernel


@pytest.mark.parametrize("case", ["printed", "released", "gated", "dot_product"])
def test_a_kernel_reads_a_hidden_sequence_and_what_is_dropped(case, monkeypatch):
    monkeypatch.setattr(recurrence, "_loops", {})
    exact = make(6, 18, 3, dropout=0.3, **CASES[case])
    layer = make(6, 18, 3, dropout=0.3, backend="fused", **CASES[case]).float()
    x, state, hidden = given(exact, 3)
    if layer.gated:
        state = torch.stack(state)

    def call(layer, x, state, hidden):
        torch.manual_seed(7)
        return ours(layer, x, tuple(state) if layer.gated else state, hidden)

    masks = torch.nn.functional.dropout  # the same numbers in both precisions
    monkeypatch.setattr(
        torch.nn.functional, "dropout", lambda ones, p: masks(torch.ones_like(ones, dtype=torch.float32), p).to(ones)
    )
    with torch.no_grad():
        for parameter, other in zip(exact.parameters(), layer.parameters(), strict=True):
            parameter.copy_(other)
    results, slopes = gradients(call, layer, [part.float() for part in (x, state, hidden)])
    wanted, exact_slopes = gradients(call, exact, [part.float().double() for part in (x, state, hidden)])
    loops = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    assert len(loops) == 1 and not loops[0].reason
    assert len(loops[0].signature.inputs) == 3 + (case != "printed")
    pairs = zip([*results, *slopes], [*wanted, *exact_slopes], strict=True)
    for mine, theirs in pairs:
        if theirs is not None:
            assert (mine.double() - theirs).norm() <= 2e-5 * theirs.norm().clamp_min(0.1)


@pytest.mark.parametrize(("sizes", "warps"), [((64, 64, 8), 1), ((256, 256, 4), 1), ((1024, 1024, 8), 4)])
def test_every_sample_has_its_own_warp_however_many_there_are(sizes, warps):
    recurrence._loops.clear()
    layer = AttentionSplit(*sizes, backend="fused")
    layer(torch.zeros(1, 1, sizes[0]))
    (loop,) = [made for made in recurrence._loops.values() if isinstance(made, Loop)]
    for sequences in (1, 128, 2048, 100_000):
        plan = loop.at(sequences).plan
        assert (plan.rows, plan.warps) == (1, warps)


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ((64, 70, 8), {}, r"hidden_size must be divisible by heads \(8\): 64 or 72, not 70\."),
        ((17, 64, 8), {}, r"input_size must be divisible by heads \(8\): 16 or 24, not 17\."),
        ((3, 64, 8), {}, r"input_size must be divisible by heads \(8\): 8, not 3\."),
        ((24, 64, 8), {}, r"heads \(8\) and input_size / heads \(3\): 48 or 72, not 64\."),
        ((8, 8, 0), {}, "heads must be at least 1, not 0"),
        ((64, 8, 8), {}, "input norm would be over a single number"),
        ((4, 8, 1), {}, "hidden norm would be over a single number"),
        ((8, 8, 8), {"variant": "released"}, "input norm would be over a single number"),
        ((8, 8, 2), {"variant": "relaesed"}, "variant is 'printed' or 'released', not 'relaesed'"),
        ((8, 8, 2), {"attention": "dot"}, "attention is 'fixed' or 'dot_product', not 'dot'"),
        ((8, 8, 2), {"variant": "released", "gated": True}, "variant must be 'printed'"),
        ((8, 8, 2), {"dropout": 1.0}, "dropout must be at least 0 and less than 1, not 1.0"),
        ((0, 8, 2), {}, "input_size must be at least 1, not 0"),
    ],
)
def test_sizes_and_options_that_cannot_be(sizes, options, words):
    with pytest.raises(ValueError, match=words):
        AttentionSplit(*sizes, **options)


def test_a_hidden_sequence_that_does_not_fit_names_both_shapes():
    layer = make()
    x, _, hidden = given(layer)
    with pytest.raises(ValueError, match=r"hidden sequence \(2, 4, 12\) for this input, not \(2, 3, 12\)"):
        layer(x, hidden=hidden[:, 1:])
    with pytest.raises(ValueError, match="reads_hidden=False"):
        make(reads_hidden=False)(x, hidden=hidden)
    with pytest.raises(ValueError, match=r"wants a state of \(2, 2, 6\) for this input, not \(2, 12\)"):
        layer(x, hidden[:, 0])
    with pytest.raises(ValueError, match="takes no timespans"):
        layer(x, timespans=x[..., 0])


def test_a_layer_that_reads_no_hidden_sequence_has_no_weights_for_it():
    layer = AttentionSplit(4, 8, 1, reads_hidden=False)
    assert layer.weight_hh is None and "hidden" not in layer.norms


def test_the_competitor_is_as_large_as_the_others():
    count = sum(parameter.numel() for parameter in nnarena.build("attention_split", task="add").parameters())
    assert 19_000 < count < 21_000
