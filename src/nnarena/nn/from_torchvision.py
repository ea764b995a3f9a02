"""torchvision's networks for images, from random start values.

x (B, C, H, W) → (B, classes). As torchvision builds them for ImageNet, with as many classes as the task has; a task of
another number of channels than 3 gets a first convolution of its own, with the same kind of start values.

    stem=imagenet    7×7 convolution with stride 2, then 3×3 max pooling with stride 2: the image is a quarter as high
    stem=cifar       3×3 convolution with stride 1, no pooling: what is usual for images of 32×32 pixels

Those that end in large dense layers are in `image_classics`. None minds how an image lies in memory, and they say so by
`channels_last`: a trainer may lay it out as is fastest.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal

from torch import nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec


@model("resnet18", reference="He et al. 2016, Deep residual learning for image recognition, CVPR", reads="images")
def resnet18(spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "imagenet") -> nn.Module:
    """Residual network of 18 layers, as torchvision builds it.

        y = relu(x + F(x)),   F: two 3×3 convolutions with batch norm

    Options:
        stem: imagenet shrinks an image to a quarter before the first block; cifar keeps its size
    """
    return _residual("resnet18", spec, stem)


@model("resnet50", reference="He et al. 2016, Deep residual learning for image recognition, CVPR", reads="images")
def resnet50(spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "imagenet") -> nn.Module:
    """Residual network of 50 layers, as torchvision builds it.

        y = relu(x + F(x)),   F: convolutions 1×1, 3×3, 1×1, with batch norm

    Where a block halves the image, its 3×3 convolution has the stride; in the paper the first 1×1 has it. Parameters:
    25,557,032 for 1000 classes.

    Options:
        stem: imagenet shrinks an image to a quarter before the first block; cifar keeps its size
    """
    return _residual("resnet50", spec, stem)


@model("resnet101", reference="He et al. 2016, Deep residual learning for image recognition, CVPR", reads="images")
def resnet101(spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "imagenet") -> nn.Module:
    """Residual network of 101 layers, as torchvision builds it: 23 blocks where resnet50 has 6.

        y = relu(x + F(x)),   F: convolutions 1×1, 3×3, 1×1, with batch norm

    Parameters: 44,549,160 for 1000 classes.

    Options:
        stem: imagenet shrinks an image to a quarter before the first block; cifar keeps its size
    """
    return _residual("resnet101", spec, stem)


@model(
    "resnext50_32x4d",
    reference="Xie et al. 2017, Aggregated residual transformations for deep networks, CVPR",
    reads="images",
)
def resnext50_32x4d(spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "imagenet") -> nn.Module:
    """Residual network of 50 layers whose 3×3 convolutions have 32 groups, as torchvision builds it.

        y = relu(x + F(x)),   F: convolutions 1×1, 3×3 in 32 groups, 1×1, with batch norm

    Options:
        stem: imagenet shrinks an image to a quarter before the first block; cifar keeps its size
    """
    return _residual("resnext50_32x4d", spec, stem)


@model("densenet121", reference="Huang et al. 2017, Densely connected convolutional networks, CVPR", reads="images")
def densenet121(spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "imagenet") -> nn.Module:
    """Network of 121 layers in four dense blocks, in which a layer sees all before it, as torchvision builds it.

        x_l = F_l(x_0, x_1, …, x_{l−1}),   F: batch norm, relu, 1×1 and 3×3 convolution to 32 channels

    Between blocks the image is halved, three times: it must have 29 pixels a side or more, or 8 with stem=cifar.

    Options:
        stem: imagenet shrinks an image to a quarter before the first block; cifar keeps its size
    """
    channels = channels_of(spec)
    at_least(29 if stem == "imagenet" else 8, spec, stem, size=32)
    net = torchvision_models().densenet121(num_classes=spec.output_size)
    net.features.conv0 = _first(net.features.conv0, channels, stem, mode="fan_in")
    if stem == "cifar":
        net.features.pool0 = nn.Identity()
    net.channels_last = True
    return net


@model("googlenet", reference="Szegedy et al. 2015, Going deeper with convolutions, CVPR", reads="images")
def googlenet(spec: TaskSpec, *, stem: Literal["imagenet", "cifar"] = "imagenet", dropout: float = 0.4) -> nn.Module:
    """Nine Inception blocks and a mean over the last map, as torchvision builds it.

        y = [conv₁(x), conv₃(conv₁(x)), conv₃(conv₁(x)), conv₁(pool₃(x))]      conv_k: k×k convolution, batch norm, relu

    Unlike the paper's it has batch norms, which came a few months later, and 3×3 convolutions in place of 5×5, as the
    authors' own weights had them. The two auxiliary heads of the paper, which helped gradients to reach the first
    layers, are left out: they are no part of an answer, and batch norm does that.

    Parameters: 6,624,904 for 1000 classes. With stem=imagenet the image must have 15 pixels a side.

    Options:
        stem: imagenet shrinks an image to an eighth before the first block; cifar keeps its size: the first convolution
            is 3×3 with stride 1, and the two poolings before the first block are left out
        dropout: of the means, in training; the paper has 0.4
    """
    channels = channels_of(spec)
    at_least(15 if stem == "imagenet" else 3, spec, stem, size=32)
    share_of_one("dropout", dropout)
    net = torchvision_models().googlenet(
        num_classes=spec.output_size, aux_logits=False, init_weights=True, dropout=dropout
    )
    old = net.conv1.conv
    if stem == "cifar" or channels != old.in_channels:
        kernel, stride, padding = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
        net.conv1.conv = nn.Conv2d(channels, old.out_channels, kernel, stride, padding, bias=False)
        nn.init.trunc_normal_(net.conv1.conv.weight, std=0.01)  # torchvision's start values
    if stem == "cifar":
        net.maxpool1 = net.maxpool2 = nn.Identity()
    net.channels_last = True
    return net


def _residual(name: str, spec: TaskSpec, stem: str) -> nn.Module:
    channels = channels_of(spec)
    net = getattr(torchvision_models(), name)(num_classes=spec.output_size)
    net.conv1 = _first(net.conv1, channels, stem, mode="fan_out")
    if stem == "cifar":
        net.maxpool = nn.Identity()
    net.channels_last = True
    return net


def channels_of(spec: TaskSpec) -> int:
    if len(spec.input_shape) != 3:
        raise Unfit(f"it reads images (channels, height, width), and the task gives {spec.input_shape}.")
    return spec.input_shape[0]


def at_least(least: int, spec: TaskSpec, stem: str, size: int) -> None:
    """Raise Unfit where an image has fewer pixels a side; says which `size` or stem would do."""
    _, height, width = spec.input_shape
    if min(height, width) < least:
        raise Unfit(
            f"it needs {least}×{least} pixels with stem={stem}, and the task gives {height}×{width}: set the task's "
            f"size={size}{'' if stem == 'cifar' else ', or stem=cifar'}."
        )


def torchvision_models() -> ModuleType:
    try:
        from torchvision import models
    except ImportError as error:
        raise Unfit("it is built by torchvision, which is not installed: pip install 'nnarena[images]'.") from error
    return models


def share_of_one(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise Unfit(f"{name} must be at least 0 and less than 1, not {value}.")


def _first(conv: nn.Conv2d, channels: int, stem: str, mode: Literal["fan_in", "fan_out"]) -> nn.Conv2d:
    """The first convolution for so many channels, with torchvision's kind of start values for this net."""
    if stem == "imagenet" and channels == conv.in_channels:
        return conv
    kernel, stride, padding = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
    new = nn.Conv2d(channels, conv.out_channels, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(new.weight, mode=mode, nonlinearity="relu")
    return new
