"""What turns tokens into tokens: its equations, nothing from the future, and how it writes."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import nnarena
from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import BEGIN, END, PADDING, SPECIAL, TaskSpec
from nnarena.core.tokens import shifted
from nnarena.nn.encoder_decoder import Attention

B, T, L, V = 3, 6, 5, 9
SPEC = TaskSpec(input_shape=(T,), output_size=V, target="tokens", vocabulary=V, target_length=L)
KINDS = (None, "additive", "dot_product", "scaled_dot_product")
CELLS = ("gru", "lstm", "elman")
MODELS = {
    f"{cell} {kind}": ("encoder_decoder", {"cell": cell, "attention": kind, "hidden_size": 8})
    for cell in CELLS
    for kind in KINDS
} | {"transformer": ("seq2seq_transformer", {"d_model": 8})}


def make(name, spec=SPEC):
    model, options = MODELS[name]
    component = catalogue("model")[model]
    torch.manual_seed(0)
    return shaken(component.load()(spec, **component.resolve(options)))


def shaken(model):
    """Away from start values, in float64."""
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tokens():
    """Sources of different lengths, and targets."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(SPECIAL, V, (B, T), generator=generator)
    source[1, :2] = source[2, :5] = PADDING
    target = torch.randint(SPECIAL, V, (B, L), generator=generator)
    target[0, 4] = target[1, 2] = END
    target[1, 3:] = PADDING
    return source, target


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_all_steps_at_once_are_the_steps_one_by_one(name):
    model, (source, target) = make(name), tokens()
    memory = model.read(source)
    state, found = model.begin(memory), []
    for place, before in enumerate(shifted(target).unbind(1)):
        logits, state = model.advance(memory, state, before, place)
        found.append(logits)
    close(torch.stack(found, 1), model(source, target))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_knows_what_was_written_before_it_and_no_more(name):
    model, (source, target) = make(name), tokens()
    usual = model(source, target)
    for place in range(L):
        other = target.clone()
        other[:, place] = (other[:, place] - SPECIAL + 1) % (V - SPECIAL) + SPECIAL
        changed = (model(source, other) - usual).abs().amax((0, 2)) > 1e-12
        assert not changed[: place + 1].any() and changed[place + 1 :].all()


@pytest.mark.parametrize("name", MODELS)
def test_alone_it_writes_what_it_would_write_after_its_own_words(name):
    model, (source, _) = make(name), tokens()
    logits = model(source)
    close(model(source, logits.argmax(-1)), logits)


@pytest.mark.parametrize("name", [name for name in MODELS if "None" not in name])
def test_padding_is_not_attended_to(name):
    model, (source, target) = make(name), tokens()
    x = torch.cat([torch.full((B, 3), PADDING), source], 1)
    if name == "transformer":  # nor does it shift the positions
        close(model(x, target), model(source, target))
    else:
        _, outputs, padding = model.read(source)
        _, weights = model.attention(torch.randn(B, L, 8, dtype=torch.float64), outputs, padding)
        assert not weights[1, :, :2].any() and bool((weights[2, :, 5] == 1).all())
        close(weights.sum(-1), torch.ones(B, L, dtype=torch.float64))


def test_what_it_looked_at_is_what_it_wrote_by():
    model, (source, _) = make("gru additive").eval(), tokens()
    said, weights = model.attention_map(source)
    assert torch.equal(said, model(source).argmax(-1))
    memory = model.read(source)
    output = model.think(memory, shifted(said))
    context = weights @ memory[1]
    close(model.head(torch.tanh(model.combine(torch.cat([context, output], -1)))), model(source))
    assert make("gru None").attention_map(source) is None


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_what_the_transformer_shows_is_the_mean_over_heads_of_its_last_cross_attention(heads, layers):
    component, (source, _) = catalogue("model")["seq2seq_transformer"], tokens()
    torch.manual_seed(0)
    model = component.load()(SPEC, **component.resolve({"d_model": 8, "nhead": heads, "num_layers": layers}))
    model = shaken(model).eval()
    said, weights = model.attention_map(source)
    assert torch.equal(said, model(source).argmax(-1)) and weights.shape == (B, L, T)
    there = source != PADDING
    assert not weights[~there.unsqueeze(1).expand_as(weights)].any()
    close(weights.sum(-1), torch.ones(B, L, dtype=torch.float64))
    assert weights[1].std(-1).min() > 1e-3

    memory, seen = model.read(source), []
    last = model.decoder[-1].multihead_attn
    hook = last.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model.think(memory, shifted(said))
    hook.remove()
    (x,), width = seen, 8 // heads
    Q, K, _ = last.in_proj_weight.split(8)
    q, k, _ = last.in_proj_bias.split(8)
    for b in range(B):
        by_hand = torch.zeros(L, int(there[b].sum()), dtype=torch.float64)
        for head in range(heads):
            rows = slice(head * width, (head + 1) * width)
            queries = x[b] @ Q[rows].T + q[rows]
            keys = memory[0][b, there[b]] @ K[rows].T + k[rows]
            by_hand += (queries @ keys.T / math.sqrt(width)).softmax(-1) / heads
        close(weights[b][:, there[b]], by_hand)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_attention_is_its_equations(kind):
    torch.manual_seed(0)
    layer = Attention(4, kind).double()
    query, memory = torch.randn(B, L, 4).double(), torch.randn(B, T, 4).double()
    padding = tokens()[0] == PADDING
    context, weights = layer(query, memory, padding)
    for b in range(B):
        for q in range(L):
            scores = []
            for k in memory[b, ~padding[b]]:
                if kind == "additive":
                    both = layer.query.weight @ query[b, q] + layer.query.bias + layer.key.weight @ k
                    scores.append(layer.mix.weight[0] @ both.tanh())
                else:
                    scores.append(query[b, q] @ k / (math.sqrt(4) if kind.startswith("scaled") else 1))
            alpha = torch.stack(scores).softmax(0)
            close(weights[b, q, ~padding[b]], alpha)
            close(context[b, q], alpha @ memory[b, ~padding[b]])
    with pytest.raises(ValueError, match="attention is dot_product, scaled_dot_product or additive, not 'cosine'"):
        Attention(4, "cosine")


@pytest.mark.parametrize("kind", [None, "dot_product"])
def test_with_torchs_layers_the_numbers_and_gradients_are_the_same(kind):
    model, (source, target) = make(f"gru {kind}"), tokens()
    reader, writer = (nn.GRU(16, 8, batch_first=True, dtype=torch.float64) for _ in range(2))
    for layer, ours in ((reader, model.encoder), (writer, model.decoder)):
        layer.load_state_dict({f"{name}_l0": value for name, value in ours.state_dict().items()})
    rest = copy.deepcopy(model)
    m, h = reader(rest.source(source))
    out, _ = writer(rest.target(shifted(target)), h)
    if kind:
        scores = torch.einsum("blh,bth->blt", out, m).masked_fill((source == PADDING)[:, None], -torch.inf)
        out = torch.tanh(rest.combine(torch.cat([scores.softmax(-1) @ m, out], -1)))
    theirs, ours = rest.head(out), model(source, target)
    close(ours, theirs)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        close(getattr(model.encoder, name).grad, getattr(reader, f"{name}_l0").grad)
        close(getattr(model.decoder, name).grad, getattr(writer, f"{name}_l0").grad)
    close(model.source.weight.grad, rest.source.weight.grad)
    close(model.head.weight.grad, rest.head.weight.grad)


def test_the_transformer_is_torchs():
    model, (source, target) = make("transformer"), tokens()
    twin = nn.Transformer(8, 2, 2, 2, 64, 0.0, batch_first=True, dtype=torch.float64)
    twin.encoder = nn.TransformerEncoder(twin.encoder.layers[0], 2, enable_nested_tensor=False)
    twin.decoder = nn.TransformerDecoder(twin.decoder.layers[0], 2)
    twin.encoder.layers, twin.decoder.layers = copy.deepcopy(model.encoder), copy.deepcopy(model.decoder)
    padding = source == PADDING
    places = (~padding).cumsum(1) - 1

    def place(layer, tokens, positions):
        waves = torch.zeros(*positions.shape, 8, dtype=torch.float64)
        for k in range(4):
            angle = positions.double() / 10_000 ** (2 * k / 8)
            waves[..., 2 * k], waves[..., 2 * k + 1] = angle.sin(), angle.cos()
        return layer(tokens) * math.sqrt(8) + waves

    theirs = model.head(
        twin(
            place(model.source, source, places),
            place(model.target, shifted(target), torch.arange(L).expand(B, L)),
            tgt_mask=torch.ones(L, L, dtype=torch.bool).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
    )
    close(model(source, target), theirs)


@pytest.mark.parametrize("task", ["reverse", "dates"])
@pytest.mark.parametrize("name", ["seq2seq_transformer", "encoder_decoder"])
def test_rivals_have_no_more_than_20000_parameters(name, task):
    component, step = catalogue("model")[name], 2 if "transformer" in name else 1
    spec = catalogue("task")[task].load()().spec
    option = "d_model" if step == 2 else "hidden_size"
    grid = [{}] if step == 2 else [{"attention": kind, "cell": cell} for kind in KINDS for cell in ("gru", "lstm")]
    for options in grid:
        model = component.load()(spec, **component.resolve(options))
        width = model.d_model if step == 2 else model.encoder.hidden_size
        wider = component.load()(spec, **component.resolve(options | {option: width + step}))
        least, most = (sum(p.numel() for p in net.parameters()) for net in (model, wider))
        assert least <= 20_000 < most, options


def test_who_asks_for_no_tokens_is_told_so():
    for name in ("encoder_decoder", "seq2seq_transformer"):
        with pytest.raises(Unfit, match=r"it turns tokens into tokens, and the task asks for no such sequence"):
            nnarena.build(name, task="add")
    with pytest.raises(Unfit, match="even and a multiple of nhead=4, not 6"):
        nnarena.build("seq2seq_transformer[d_model=6,nhead=4]", task="copy")
    for wrong in ("hidden_size", "embedding_size"):
        with pytest.raises(Unfit, match=f"it takes {wrong} of at least 1, not 0"):
            nnarena.build(f"encoder_decoder[{wrong}=0]", task="copy")
    with pytest.raises(Unfit, match="even and a multiple of nhead=2, not 0"):
        nnarena.build("seq2seq_transformer[d_model=0]", task="copy")
    with pytest.raises(Unfit, match="at least 1 head"):
        nnarena.build("seq2seq_transformer[num_layers=0]", task="copy")
    assert BEGIN == 1
