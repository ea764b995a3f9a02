"""Element-wise attention: against loops over heads, rows and columns in float64, and the published counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import nnarena
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn import AttentionWise1d, AttentionWise2d, ControlNet
from nnarena.nn.attention_wise_net import CONFIGS, attention_wise

B, C, H, W, N = 5, 2, 4, 3, 3
OPTIONS = [{}, {"norm": True}, {"skip": False}, {"bias": True}, {"temperature": 0.3}, {"norm": True, "skip": False}]
# Ours where it follows from the equation of the paper, which prints another number for some.
COUNTS = {
    "A": (33_088, 33_104), "B": (33_084, 33_084), "C": (58_320, 58_208), "D": (58_316, 58_172), "E": (58_326, 58_342),
    "F": (58_318, 58_318), "G": (108_790, 108_534), "H": (108_782, 108_494), "single": (11_010, 11_132),
    "no_skip": (33_084, 33_084),
}  # fmt: skip


def make(layer, *sizes, **options):
    torch.manual_seed(0)
    made = layer(*sizes, std=1.0, dtype=torch.float64, **options)
    for bias in (made.attention.bias_x, made.attention.bias_y):
        if bias is not None:
            nn.init.normal_(bias)
    return made


def softmax(values):
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def relevance_by_hand(image, weight_x, weight_y):
    """X ⊙ Y of one head and one channel, number by number."""
    height, width = image.shape
    product = [[image[i, j] * weight_x[i, j] for j in range(width)] for i in range(height)]
    rows = [softmax([float(value) for value in row]) for row in product]
    product = [[image[i, j] * weight_y[i, j] for i in range(height)] for j in range(width)]
    columns = [softmax([float(value) for value in column]) for column in product]
    return torch.tensor([[rows[i][j] * columns[j][i] for j in range(width)] for i in range(height)])


def by_heads(layer, x):
    """The layer as it is described: one head after the other."""
    heads, found = layer.attention, []
    for head in range(heads.heads):
        across, down = x * heads.weight_x[head], x * heads.weight_y[head]
        if heads.bias_x is not None:
            across, down = across + heads.bias_x[head], down + heads.bias_y[head]
        across, down = ((part / heads.temperature).exp() for part in (across, down))
        relevance = across / across.sum(-1, keepdim=True) * (down / down.sum(-2, keepdim=True))
        over = [dim for dim in range(x.dim()) if dim != 1] if x.dim() == 4 else [0, 1, 2]
        mean = relevance.mean(over, keepdim=True)
        spread = (relevance - mean).square().mean(over, keepdim=True)
        found.append((relevance - mean) / (spread + 1e-5).sqrt() * x)
    if x.dim() == 4:
        h = functional.conv2d(torch.cat(found, 1), layer.conv.weight, layer.conv.bias, padding=1)
    else:
        wide = torch.cat([part.mT for part in found], 1)
        h = functional.conv1d(wide, layer.conv.weight, layer.conv.bias, padding=1).mT
    h = h + x if layer.skip else h
    if layer.norm is not None:
        over = [dim for dim in range(h.dim()) if dim != (1 if x.dim() == 4 else 2)]
        centred = h - h.mean(over, keepdim=True)
        h = centred / (centred.square().mean(over, keepdim=True) + 1e-5).sqrt()
    return h.clamp_min(0)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("kind", "sizes"), [(AttentionWise2d, (C, H, W, N)), (AttentionWise1d, (6, 4, N))])
def test_one_head_after_the_other_is_the_same_with_every_gradient(kind, sizes, options):
    layer = make(kind, *sizes, **options)
    x = torch.randn(B, *sizes[:-1], dtype=torch.float64, requires_grad=True)
    results = [layer(x), by_heads(layer, x)]
    torch.testing.assert_close(*results)
    learned = [x, *(param for name, param in layer.named_parameters() if not name.startswith("norm"))]
    pull = torch.randn_like(results[0])
    torch.testing.assert_close(*(torch.autograd.grad((result * pull).sum(), learned) for result in results))


@torch.no_grad()
def test_number_by_number():
    layer = make(AttentionWise2d, C, H, W, N)
    x = torch.randn(B, C, H, W, dtype=torch.float64)
    relevance, heads = layer.stages(x).relevance, layer.attention
    for sample, head, channel in ((0, 0, 0), (4, 2, 1), (2, 1, 0)):
        wanted = relevance_by_hand(x[sample, channel], heads.weight_x[head, channel], heads.weight_y[head, channel])
        torch.testing.assert_close(relevance[sample, head, channel], wanted.double(), rtol=1e-6, atol=1e-9)


def test_rows_and_columns_sum_to_one_and_stages_are_the_way():
    layer = make(AttentionWise2d, C, H, W, N, norm=True)
    x = torch.randn(B, C, H, W, dtype=torch.float64)
    stages = layer.stages(x)
    torch.testing.assert_close(stages.rows.sum(-1), torch.ones(B, N, C, H, dtype=torch.float64))
    torch.testing.assert_close(stages.columns.sum(-2), torch.ones(B, N, C, W, dtype=torch.float64))
    torch.testing.assert_close(stages.relevance, layer.attention(x))
    assert stages.attended.shape == (B, N * C, H, W) and stages.normed is not None
    torch.testing.assert_close(stages.summed, stages.convolved + x)
    torch.testing.assert_close(stages.output, layer(x))
    assert make(AttentionWise2d, C, H, W, N).stages(x).normed is None


def test_stages_of_a_sequence_are_the_way_in_the_same_order():
    T, F = 6, 4
    layer = make(AttentionWise1d, T, F, N, norm=True)
    x = torch.randn(B, T, F, dtype=torch.float64)
    stages = layer.stages(x)
    torch.testing.assert_close(stages.rows.sum(-1), torch.ones(B, N, T, dtype=torch.float64))
    torch.testing.assert_close(stages.columns.sum(-2), torch.ones(B, N, F, dtype=torch.float64))
    torch.testing.assert_close(stages.relevance, layer.attention(x))
    wide = stages.attended.transpose(-1, -2).reshape(B, N * F, T)
    torch.testing.assert_close(stages.convolved, layer.conv(wide).mT)
    torch.testing.assert_close(stages.summed, stages.convolved + x)
    torch.testing.assert_close(stages.normed.mean((0, 1)), torch.zeros(F, dtype=torch.float64))
    torch.testing.assert_close(stages.output, stages.normed.relu())
    torch.testing.assert_close(stages.output, layer(x))
    assert make(AttentionWise1d, T, F, N).stages(x).normed is None


def test_arrays_are_what_is_learned_for_every_place():
    layer = make(AttentionWise2d, C, H, W, N, bias=True)
    assert list(layer.arrays()) == ["weight_x", "weight_y", "bias_x", "bias_y"]
    assert all(array.shape == (N, C, H, W) for array in layer.arrays().values())
    assert list(make(AttentionWise1d, 6, 4, N).arrays()) == ["weight_x", "weight_y"]


@pytest.mark.parametrize("kind", [AttentionWise2d, AttentionWise1d])
def test_gradcheck(kind):
    layer = make(kind, *((1, 3, 3, 2) if kind is AttentionWise2d else (3, 3, 2)), norm=True)
    x = torch.randn(3, *layer.size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


@pytest.mark.parametrize("kind", [AttentionWise2d, AttentionWise1d])
def test_samples_do_not_see_each_other_when_it_answers(kind):
    layer = make(kind, *((C, H, W, N) if kind is AttentionWise2d else (6, 4, N)), norm=True)
    x = torch.randn(B, *layer.size, dtype=torch.float64)
    layer(x)  # statistics
    layer.eval()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(layer(x[order]), layer(x)[order])
    torch.testing.assert_close(layer(x[:1]), layer(x)[:1])


@pytest.mark.parametrize("config", CONFIGS)
def test_parameters(config):
    ours, published = COUNTS[config]
    net = nnarena.build(f"attention_wise[config={config}]", task="fashion_mnist")
    heads, layers, norm, _ = CONFIGS[config]
    assert sum(param.numel() for param in net.parameters()) == ours
    assert ours == layers * (2 * heads * 784 + 9 * heads + 1 + 2 * norm) + 7_850
    # how the paper came to its own: the convolution of eight channels for all, and a norm that counts by heads
    assert published == layers * (2 * heads * 784 + 73) + 7_850 + (norm and heads > 1) * (2 * heads + 2 * layers)


def test_the_count_for_colours_follows_from_the_equation():
    net = nnarena.build("attention_wise[config=F]", task="cifar10")
    assert sum(param.numel() for param in net.parameters()) == 229_942  # the paper prints 506,560


@pytest.mark.parametrize(("task", "count"), [("fashion_mnist", 929_510), ("cifar10", 961_310)])
def test_the_control_has_the_published_parameters(task, count):
    assert sum(param.numel() for param in nnarena.build("control_vgg", task=task).parameters()) == count


@pytest.mark.parametrize("model", ["attention_wise[config=A]", "control_vgg"])
def test_start_values_are_the_paper_s(model):
    torch.manual_seed(0)
    for name, param in nnarena.build(model, task="fashion_mnist").named_parameters():
        if name.endswith("bias"):
            assert not param.any()
        elif ".norm." not in name and param.numel() > 500:
            assert float(param.detach().std()) == pytest.approx(0.02, rel=0.1), name


def test_start_values_by_fan_keep_the_gradient():
    """The cure for what the paper found: gradients of the first weights that are all but zero."""
    spec, slopes = TaskSpec(input_shape=(1, 12, 12), output_size=10, target="class"), []
    x, y = torch.rand(64, 1, 12, 12), torch.randint(10, (64,))
    for options in ({}, {"init": "scaled", "std": 1.0}):
        torch.manual_seed(0)
        net = attention_wise(spec, **options)
        functional.cross_entropy(net(x), y).backward()
        slopes.append(float(net.layers[0].attention.weight_x.grad.abs().mean()))
    assert slopes[1] > 30 * slopes[0]


def test_options_in_the_place_of_the_configuration():
    net = nnarena.build("attention_wise[config=C,heads=2,layers=3,norm=false,skip=false,downsample=2]", task="cifar10")
    assert len(net.layers) == 3
    assert all(layer.size == (3, 16, 16) and layer.norm is None and not layer.skip for layer in net.layers)
    assert net.layers[0].attention.heads == 2
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: AttentionWise2d(1, 28, 28, 0), "heads must be at least 1, not 0."),
        (lambda: AttentionWise2d(0, 28, 28), "channels must be at least 1, not 0."),
        (lambda: AttentionWise1d(5, 0), "features must be at least 1, not 0."),
        (lambda: AttentionWise2d(1, 4, 4, temperature=0.0), "temperature must be positive, not 0.0."),
        (lambda: AttentionWise2d(1, 4, 4, std=-1.0), "std must not be negative, not -1.0."),
        (lambda: AttentionWise2d(1, 28, 28)(torch.zeros(2, 3, 32, 32)), "images (1, 28, 28).*not (2, 3, 32, 32)"),
        (lambda: AttentionWise2d(1, 28, 28)(torch.zeros(2, 28, 28)), "images (1, 28, 28).*not (2, 28, 28)"),
        (lambda: AttentionWise1d(6, 4)(torch.zeros(2, 5, 4)), "sequences (6, 4).*not (2, 5, 4)"),
        (lambda: ControlNet(1, 3, 8, 10), "4×4 pixels or more, not 3×8."),
    ],
)
def test_bad_sizes(call, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        call()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"layers": 0}, "layers must be at least 1, not 0."), ({"downsample": 40}, "at most 28, not 40.")],
)
def test_what_does_not_fit(options, sentence):
    spec = TaskSpec(input_shape=(1, 28, 28), output_size=10, target="class")
    with pytest.raises(Unfit, match=sentence):
        attention_wise(spec, **options)
