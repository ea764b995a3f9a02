"""Competitors made of element-wise attention: for images as published, and for sequences.

B batch, C channels, H height, W width, T time, F features.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.attention_wise import AttentionWise1d, AttentionWise2d, draw_


class Config(NamedTuple):
    """A published configuration."""

    heads: int
    layers: int
    norm: bool
    skip: bool = True


CONFIGS: dict[str, Config] = {
    "A": Config(heads=8, layers=2, norm=True),
    "B": Config(heads=8, layers=2, norm=False),
    "C": Config(heads=16, layers=2, norm=True),
    "D": Config(heads=16, layers=2, norm=False),
    "E": Config(heads=8, layers=4, norm=True),
    "F": Config(heads=8, layers=4, norm=False),
    "G": Config(heads=16, layers=4, norm=True),
    "H": Config(heads=16, layers=4, norm=False),
    "single": Config(heads=1, layers=2, norm=True),
    "no_skip": Config(heads=8, layers=2, norm=False, skip=False),
}


class AttentionWiseNet(nn.Module):
    """Layers of element-wise attention, one after the other, and a dense layer: (B, C, H, W) → (B, classes)."""

    def __init__(self, layers: list[AttentionWise2d], outputs: int, downsample: int = 1) -> None:
        super().__init__()
        channels, height, width = layers[0].size
        self.shrink = nn.AvgPool2d(downsample) if downsample > 1 else nn.Identity()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(channels * height * width, outputs)
        draw_(self.head)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shrink(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.flatten(1))


@model(
    "attention_wise",
    reference="Bacochina and Thom de Souza 2023, Element-wise attention layers: an option for optimization",
    reads="images",
)
def attention_wise(
    spec: TaskSpec,
    *,
    config: Literal["A", "B", "C", "D", "E", "F", "G", "H", "single", "no_skip"] = "B",
    heads: int | None = None,
    layers: int | None = None,
    norm: bool | None = None,
    skip: bool | None = None,
    bias: bool = False,
    std: float = 0.02,
    temperature: float = 1.0,
    init: Literal["paper", "scaled"] = "paper",
    downsample: int = 1,
) -> nn.Module:
    """Element-wise attention: every pixel is weighted against its row and against its column.

        X = softmax over each row of (I ⊙ Wx),   Y = softmax over each column of (I ⊙ Wy)      for each head
        O = relu(conv(norm(X ⊙ Y) ⊙ I of all heads) + I)

    The last O passes a dense layer.

    Options:
        config: a published configuration: A to H, single (one head), no_skip (B without the skip)
        heads: in the place of the configuration's
        layers: in the place of the configuration's
        norm: a batch norm after the convolution, in the place of the configuration's
        skip: + I, in the place of the configuration's
        bias: a bias of the attention product
        std: of the start values of Wx and Wy
        temperature: what the products are divided by before the softmax
        init: paper draws all weights from N(0, 0.02); scaled draws convolutions and the dense layer by their fan (He)
        downsample: the image is averaged over squares of so many pixels a side first
    """
    if len(spec.input_shape) != 3:
        raise Unfit(f"it reads images (channels, height, width), and the task gives {spec.input_shape}.")
    published, own = CONFIGS[config], {"heads": heads, "layers": layers, "norm": norm, "skip": skip}
    chosen = published._replace(**{name: value for name, value in own.items() if value is not None})
    channels, height, width = spec.input_shape
    if chosen.layers < 1:
        raise Unfit(f"layers must be at least 1, not {chosen.layers}.")
    if not 1 <= downsample <= min(height, width):
        raise Unfit(f"downsample must be at least 1 and at most {min(height, width)}, not {downsample}.")
    sizes = channels, height // downsample, width // downsample
    made = [
        AttentionWise2d(
            *sizes, chosen.heads, norm=chosen.norm, skip=chosen.skip, bias=bias, std=std, temperature=temperature
        )
        for _ in range(chosen.layers)
    ]
    net = AttentionWiseNet(made, spec.output_size, downsample)
    if init == "scaled":
        for part in net.modules():
            if isinstance(part, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return net


class AttentionWiseSequence(nn.Module):
    """A dense layer for every step, layers of element-wise attention, and a dense layer: answers as the task asks."""

    def __init__(self, spec: TaskSpec, features: int, heads: int, layers: int, **options: float | bool) -> None:
        super().__init__()
        length, inputs = spec.sequence
        self.per_step = spec.per_step
        self.embed = nn.Linear(inputs + spec.timespans, features)
        self.layers = nn.ModuleList(AttentionWise1d(length, features, heads, **options) for _ in range(layers))  # type: ignore[arg-type]
        self.head = nn.Linear(features if spec.per_step else length * features, spec.output_size)

    def forward(self, x: Tensor, timespans: Tensor | None = None) -> Tensor:
        if timespans is not None:
            x = torch.cat([x, timespans.unsqueeze(-1)], -1)
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x if self.per_step else x.flatten(1))


@model(
    "attention_wise_1d",
    reference="Bacochina and Thom de Souza 2023, Element-wise attention layers: an option for optimization",
)
def attention_wise_1d(
    spec: TaskSpec,
    *,
    features: int = 16,
    heads: int = 2,
    layers: int = 2,
    norm: bool = False,
    skip: bool = True,
    bias: bool = False,
    std: float = 0.02,
    temperature: float = 1.0,
) -> nn.Module:
    """Element-wise attention over sequences: every number is weighted against its step and against its own history.

        X = softmax over features of (I ⊙ Wx),   Y = softmax over time of (I ⊙ Wy)      for each head
        O = relu(conv(norm(X ⊙ Y) ⊙ I of all heads) + I)

    Each step passes a dense layer first. The answer is a dense layer of all steps, or of each step where the task wants
    one at each. Elapsed time, where a task gives it, is one more input. Weights belong to steps, so their number grows
    with the length. The idea is the paper's, its use on sequences is ours.

    Options:
        features: of a step
        heads: each has two weights of the size of the sequence
        layers: one after the other
        norm: a batch norm after the convolution
        skip: + I
        bias: a bias of the attention product
        std: of the start values of Wx and Wy
        temperature: what the products are divided by before the softmax
    """
    if layers < 1:
        raise Unfit(f"layers must be at least 1, not {layers}.")
    options = {"norm": norm, "skip": skip, "bias": bias, "std": std, "temperature": temperature}
    return AttentionWiseSequence(spec, features, heads, layers, **options)
