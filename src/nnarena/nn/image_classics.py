"""Networks for images that end in large dense layers: AlexNet and VGG, as torchvision builds them. Random start values.

x (B, C, H, W) → (B, classes).

    stem=imagenet    as published for 224×224 pixels: dense layers of 4096 units read the last map, averaged to 6×6 or
                     7×7 squares. Of a smaller image they read copies of the same numbers.
    stem=cifar       for small images, where that would be nearly all dense layer: the first convolution keeps the size
                     of the image, poolings leave no row or column out, and dense layers of 512 units read the whole
                     last map as it is. Any size from 8×8 on will do.

All tasks here are small, so that stem=cifar is the default; `cifar10[size=224]` is for the published one.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.nn.from_torchvision import at_least, channels_of, share_of_one, torchvision_models

UNITS = 512  # of the dense layers behind a small stem
SMALLEST = 8


@model(
    "alexnet",
    reference="Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks, arXiv:1404.5997",
    reads="images",
)
def alexnet(spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "cifar", dropout: float = 0.5) -> nn.Module:
    """Five convolutions and three dense layers, as torchvision builds it.

        11×11 stride 4, pool; 5×5, pool; 3×3, 3×3, 3×3, pool; dense, dense, dense      each with a relu but the last

    The version of 2014, in one column and without the normalisation of 2012. A pooling is the maximum over
    3×3 with stride 2. Parameters: 61,100,840 for 1000 classes with stem=imagenet, which needs 63×63 pixels.

    Options:
        stem: imagenet as published; cifar has a first convolution of 3×3 with stride 1, and dense layers of 512 units
        dropout: of what the first two dense layers read, in training; published is 0.5
    """
    channels = channels_of(spec)
    at_least(63 if stem == "imagenet" else SMALLEST, spec, stem, size=224)
    share_of_one("dropout", dropout)
    if stem == "imagenet":
        net = torchvision_models().alexnet(num_classes=spec.output_size, dropout=dropout)
        if channels != 3:
            net.features[0] = nn.Conv2d(channels, 64, 11, 4, 2)
    else:
        with torch.device("meta"):  # its large layers are thrown away
            net = torchvision_models().alexnet(num_classes=spec.output_size, dropout=dropout)
            net.features[0] = nn.Conv2d(channels, 64, 3, padding=1)
            make_small(net, spec, [side // 8 for side in spec.input_shape[1:]])
        start_anew(net)
    net.channels_last = True
    return net


@model(
    "vgg16",
    reference="Simonyan and Zisserman 2015, Very deep convolutional networks for large-scale image recognition, ICLR",
    reads="images",
)
def vgg16(
    spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "cifar", norm: bool = False, dropout: float = 0.5
) -> nn.Module:
    """Thirteen 3×3 convolutions and three dense layers (configuration D), as torchvision builds it.

        (conv, relu) × 2, 2, 3, 3, 3 with 64, 128, 256, 512, 512 maps, a maximum over 2×2 after each; then dense layers

    Parameters: 138,357,544 for 1000 classes with stem=imagenet, which needs 32×32 pixels.

    Options:
        stem: imagenet as published; cifar has the same convolutions, and dense layers of 512 units
        norm: a batch norm after every convolution, without which so deep a network is hard to start
        dropout: of what the dense layers but the first read, in training; published is 0.5
    """
    return _vgg("vgg16", spec, stem, norm, dropout)


@model(
    "vgg19",
    reference="Simonyan and Zisserman 2015, Very deep convolutional networks for large-scale image recognition, ICLR",
    reads="images",
)
def vgg19(
    spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "cifar", norm: bool = False, dropout: float = 0.5
) -> nn.Module:
    """Sixteen 3×3 convolutions and three dense layers (configuration E), as torchvision builds it.

        (conv, relu) × 2, 2, 4, 4, 4 with 64, 128, 256, 512, 512 maps, a maximum over 2×2 after each; then dense layers

    Parameters: 143,667,240 for 1000 classes with stem=imagenet, which needs 32×32 pixels.

    Options:
        stem: imagenet as published; cifar has the same convolutions, and dense layers of 512 units
        norm: a batch norm after every convolution, without which so deep a network is hard to start
        dropout: of what the dense layers but the first read, in training; published is 0.5
    """
    return _vgg("vgg19", spec, stem, norm, dropout)


def _vgg(name: str, spec: TaskSpec, stem: str, norm: bool, dropout: float) -> nn.Module:
    channels = channels_of(spec)
    at_least(32 if stem == "imagenet" else SMALLEST, spec, stem, size=224)
    share_of_one("dropout", dropout)
    make = getattr(torchvision_models(), f"{name}_bn" if norm else name)
    if stem == "imagenet":
        net = make(num_classes=spec.output_size, dropout=dropout)
        if channels != 3:
            net.features[0] = nn.Conv2d(channels, 64, 3, padding=1)
            start_as_vgg(net.features[0])
    else:
        with torch.device("meta"):
            net = make(num_classes=spec.output_size, dropout=dropout, init_weights=False)
            net.features[0] = nn.Conv2d(channels, 64, 3, padding=1)
            make_small(net, spec, [-(-side // 32) for side in spec.input_shape[1:]])
        start_anew(net)
        net.apply(start_as_vgg)
    net.channels_last = True
    return net


def make_small(net: Any, spec: TaskSpec, last_map: list[int]) -> None:
    """The end of a network for small images: no row is left out, and the dense layers fit the last map."""
    for part in net.modules():
        if isinstance(part, nn.MaxPool2d):
            part.ceil_mode = True
    maps = [part.out_channels for part in net.modules() if isinstance(part, nn.Conv2d)][-1]
    net.avgpool = nn.Identity()
    sizes = [maps * math.prod(last_map), UNITS, UNITS, spec.output_size]
    dense = [place for place, part in enumerate(net.classifier) if isinstance(part, nn.Linear)]
    for place, pair in zip(dense, pairwise(sizes), strict=True):
        net.classifier[place] = nn.Linear(*pair)


def start_anew(net: nn.Module) -> None:
    """Memory and torch's start values for a network that has neither."""
    net.to_empty(device="cpu")
    for part in net.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()  # type: ignore[operator]


def start_as_vgg(part: nn.Module) -> None:
    """torchvision's start values of VGG, as far as they are not torch's."""
    if isinstance(part, nn.Conv2d):
        nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(part, nn.Linear):
        nn.init.normal_(part.weight, std=0.01)
    if isinstance(part, (nn.Conv2d, nn.Linear)) and part.bias is not None:
        nn.init.zeros_(part.bias)
