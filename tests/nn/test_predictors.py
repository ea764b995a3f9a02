"""The three predictors: layers as they say, the second reading the first."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.predictors import EncoderLayer, EncoderStack, LSTMStack

SPEC = TaskSpec(input_shape=(10, 4), output_size=2, target="class")
PREDICTORS = ("predictor_attention_split", "predictor_lstm", "predictor_transformer")


def build(name, spec=SPEC, **options):
    torch.manual_seed(0)
    component = catalogue("model")[name]
    return component.load()(spec, **component.resolve(options))


def with_torchs_weights(layer, torchs):
    theirs = torchs.state_dict()
    names = {"attended": "self_attn.in_proj_", "mixed": "self_attn.out_proj.", "wide": "linear1.", "narrow": "linear2."}
    names |= {"norms.0": "norm1.", "norms.1": "norm2."}
    parts = {f"{ours}.{kind}": theirs[f"{their}{kind}"] for ours, their in names.items() for kind in ("weight", "bias")}
    layer.load_state_dict(parts)
    return layer


@pytest.mark.parametrize(("heads", "wide"), [(1, 5), (2, 8), (4, 24)])
def test_an_encoder_layer_is_torchs(heads, wide):
    torch.manual_seed(1)
    torchs = torch.nn.TransformerEncoderLayer(8, heads, wide, dropout=0.0, batch_first=True).double()
    layer = with_torchs_weights(EncoderLayer(8, heads, wide).double(), torchs)
    x = torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for one in (layer, torchs):
        output = one(x)
        named = dict(one.named_parameters())
        weights = named.get("attended.weight", named.get("self_attn.in_proj_weight"))
        results.append([output, *torch.autograd.grad(output.cos().sum(), [x, weights])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_dropout_acts_in_training_only_and_on_the_shares_too():
    torch.manual_seed(2)
    layer, x = EncoderLayer(8, 2, 8, dropout=0.5), torch.randn(4, 6, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    # Without its other places, dropout of the shares alone still shows.
    layer.train()
    layer._drop = lambda x: x
    assert not torch.equal(layer(x), layer(x))


def test_heads_must_divide_the_units():
    with pytest.raises(ValueError, match="10 is not by 4"):
        EncoderLayer(10, 4, 8)
    with pytest.raises(Exception, match="6 is not by 4"):
        build("predictor_transformer", hidden_size=6)


def test_the_second_encoder_layer_reads_the_first():
    """In the released code it read the embedded input, and the first layer had no effect."""
    stack, x = EncoderStack(4, 16, 2, 8, 0.0), torch.randn(3, 10, 4)
    wanted = stack.second(stack.first(F.gelu(x @ stack.embed.weight.T + stack.embed.bias)))
    assert stack(x)[1] is None
    torch.testing.assert_close(stack(x)[0], wanted)
    assert (stack.first.heads, stack.second.heads) == (2, 4)
    stack(x)[0].sum().backward()
    assert all(bool(param.grad.any()) for name, param in stack.first.named_parameters() if "bias" not in name)


def test_the_second_lstm_starts_where_the_first_ended():
    torch.manual_seed(3)
    stack, x = LSTMStack(4, 6).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    layers = [torch.nn.LSTM(6, 6, batch_first=True).double() for _ in range(2)]
    for theirs, ours in zip(layers, (stack.first, stack.second), strict=True):
        weights = {"weight_ih_l0": ours.weight_ih, "weight_hh_l0": ours.weight_hh, "bias_ih_l0": ours.bias}
        theirs.load_state_dict(weights | {"bias_hh_l0": torch.zeros_like(ours.bias)})
    read, handed = layers[0](F.gelu(stack.embed(x)))
    wanted, (h, c) = layers[1](read, handed)
    output, state = stack(x)
    torch.testing.assert_close(output, wanted, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state, (h[0], c[0]), rtol=1e-11, atol=1e-12)
    assert not torch.allclose(output, layers[1](read)[0])


def test_sizes_are_those_of_the_thesis():
    counts = {name: sum(param.numel() for param in build(name).parameters()) for name in PREDICTORS}
    ends = 4 * 256 + 256 + 256 * 2 + 2
    lstm = 4 * 256 * (256 + 256 + 1)
    encoder = 4 * 256 * 256 + 4 * 256 + 2 * 256 * 256 + 2 * 256 + 4 * 256
    assert counts["predictor_lstm"] == 2 * lstm + ends
    assert counts["predictor_transformer"] == 2 * encoder + ends
    layers = build("predictor_attention_split").layer
    assert (layers.first.heads, layers.second.heads, layers.first.dropout) == (4, 8, 0.1)
    assert counts["predictor_attention_split"] == sum(p.numel() for p in layers.parameters()) + 256 * 2 + 2


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_last_step_is_what_answers(name):
    net = build(name, hidden_size=16).eval()
    x = torch.randn(3, 10, 4)
    torch.testing.assert_close(net(x), net.head(net.layer(x)[0][:, -1]))
    assert net(x[:, :3]).shape == (3, 2)


@pytest.mark.parametrize("name", PREDICTORS)
def test_an_output_at_every_step_is_refused(name):
    spec = TaskSpec(input_shape=(10, 4), output_size=2, target="values", per_step=True)
    with pytest.raises(Unfit, match="it answers after the last step"):
        build(name, spec)


def test_the_transformer_is_told_no_order_and_the_others_hear_it():
    x = torch.randn(3, 10, 4)
    mixed = torch.cat([x[:, [4, 2, 7, 0, 8, 1, 3, 6, 5]], x[:, 9:]], 1)
    for name in PREDICTORS:
        net = build(name, hidden_size=16).eval()
        assert torch.allclose(net(x), net(mixed), atol=1e-5) == (name == "predictor_transformer"), name


def test_a_head_attends_by_its_share_of_the_width():
    """softmax(q · k / √(H / h)), by hand for one step that looks at two."""
    torch.manual_seed(4)
    layer, x = EncoderLayer(4, 2, 4).double().eval(), torch.randn(1, 2, 4, dtype=torch.float64)
    q, k, v = (part.reshape(2, 2, 2) for part in layer.attended(x)[0].chunk(3, -1))  # (T, h, H / h)
    heads = []
    for head in range(2):
        scores = torch.stack([q[1, head] @ k[step, head] for step in range(2)]) / math.sqrt(2)
        heads.append(scores.softmax(0) @ v[:, head])
    first = layer.norms[0](x[0, 1] + layer.mixed(torch.cat(heads)))
    wanted = layer.norms[1](first + layer.narrow(F.relu(layer.wide(first))))
    torch.testing.assert_close(layer(x)[0, 1], wanted, rtol=1e-11, atol=1e-12)
