"""What tasks on images have in common: bytes on the device, numbers for the model, and random changes in training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nnarena.core.errors import BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.data import catalogue, load
from nnarena.data.sets import find
from nnarena.tasks.augment import GREY, grey_of, parse, parse_views, resize, views

SMALLEST, LARGEST = 4, 1024
# What circulates for CIFAR-10 (kuangliu/pytorch-cifar, main.py). The deviations are the means of those of single images
# and smaller than that of all pixels; many papers normalise anything with them.
CIFAR = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class ImageSet:
    """A data set of images: its name, the shape (C, H, W), classes, the largest value of a pixel.

    `mean` and `std` are of every channel of the images for training, divided by that largest value.
    """

    name: str
    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    white: int = 255


class ImageTask(Task):
    """Tell what an image shows. N images, C channels, H×W pixels. A subclass names its `images`.

    x: (C, H, W), kept as bytes (N, C, H, W) and turned into numbers batch by batch: divided by the largest value, grey
    or coloured as asked, resized, changed at random in training, and then normalised. Validation and test may look at
    several views of an image and average.

    Where the publisher has set images aside for the test, all of them are the test; the protocol takes the
    validation's share from the others.

    Options:
        samples: images at most; none takes all
        size: pixels a side, where it shall be another one
        channels: 1 makes coloured images grey, 3 repeats a grey one; none leaves them as they are
        grey: without colour, with as many channels as before
        augment: random changes of the training images, as in pad_crop:4+flip; there are pad_crop, flip, cutout, erase,
            rotate, zoom, brightness, contrast, colour_jitter, noise and greyscale
        test_views: flip, shift or flip+shift: validation and test average the answers to an image and its mirror image,
            to the image in its place and a pixel up, down, left and right, or to all ten
        normalise: own takes the mean and deviation of the set's training images, cifar what circulates for CIFAR-10, as
            some papers do with any images, off leaves pixels from 0 to 1
    """

    images: ImageSet

    def __init__(
        self,
        *,
        samples: int | None = None,
        size: int | None = None,
        channels: int | None = None,
        grey: bool = False,
        augment: str | None = None,
        test_views: str | None = None,
        normalise: Literal["own", "cifar", "off"] = "own",
    ) -> None:
        name = getattr(self, "component_name", self.images.name)
        if samples is not None and samples < 1:
            raise BadOption(f"{name}: option 'samples' takes a whole number above 0, not {samples}.")
        if size is not None and not SMALLEST <= size <= LARGEST:
            raise BadOption(f"{name}: option 'size' takes a whole number from {SMALLEST} to {LARGEST}, not {size}.")
        if channels not in (None, 1, 3):
            raise BadOption(f"{name}: option 'channels' takes 1, 3 or none, not {channels}.")
        own, *sides = self.images.shape
        shape = (channels or own, *(sides if size is None else (size, size)))
        self.most, self.size, self.grey = samples, size, grey
        self.mean, self.std = moments(self.images, shape[0], grey, normalise)
        self.augmentation = parse(augment, shape, name)
        self.test_views = parse_views(test_views, name)
        self.noise = self.augmentation.numbers
        self.spec = TaskSpec(input_shape=shape, output_size=self.images.classes, target="class")

    def check(self) -> None:
        load(self.images.name)

    def samples(self, rng: np.random.Generator) -> Samples:
        path = next(entry.path for entry in catalogue() if entry.name == self.images.name)
        return _samples(self.images, self.most, path, path.stat().st_mtime_ns if path.exists() else 0)

    def class_names(self) -> tuple[str, ...]:
        return find(self.images.name).classes or super().class_names()

    def present(self, inputs: tuple[Tensor, ...], noise: Tensor | None) -> tuple[Tensor, ...]:
        channels = self.spec.input_shape[0]
        x_BCHW = inputs[0].float() / self.images.white
        if self.grey or channels < x_BCHW.shape[1]:
            x_BCHW = grey_of(x_BCHW)[:, :channels]
        if self.size is not None:
            x_BCHW = resize(x_BCHW, self.size)
        x_BCHW = x_BCHW.expand(-1, channels, -1, -1)
        if noise is not None:
            x_BCHW = self.augmentation(x_BCHW, noise)
        mean, std = (_on(values, x_BCHW.device) for values in (self.mean, self.std))
        return ((x_BCHW - mean) / std, *inputs[1:])

    def answer(self, model: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        """Log probabilities, averaged as probabilities over the views; the plain answer where there is one view."""
        if not self.test_views:
            return model(*inputs)
        answers = [model(x_BCHW, *inputs[1:]).log_softmax(-1) for x_BCHW in views(inputs[0], self.test_views)]
        return torch.stack(answers).logsumexp(0) - math.log(len(answers))


@functools.lru_cache(maxsize=1)
def _samples(images: ImageSet, most: int | None, path: Path, written: int) -> Samples:
    """The first images of a file as it is now, once for all seeds: nothing about them is random."""
    arrays = load(images.name)
    if "x" in arrays:  # nothing was set aside
        return Samples(*_part(images, arrays["x"], arrays["y"], most))
    total = len(arrays["x_train"]) + len(arrays["x_test"])
    count = total if most is None else min(most, total)
    train = round(count * len(arrays["x_train"]) / total)  # fewer of both, in proportion
    learn, test = (
        _part(images, arrays[f"x_{part}"], arrays[f"y_{part}"], share)
        for part, share in (("train", train), ("test", count - train))
    )
    inputs, targets = (np.concatenate(pair) for pair in zip(learn, test, strict=True))
    return Samples(inputs, targets, set_aside=np.arange(count) >= train)


def _part(images: ImageSet, x: np.ndarray, y: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Images as (N, C, H, W) bytes, and their classes."""
    channels, *sides = images.shape
    x_NHWC = x[:most].reshape(-1, *sides, channels)
    return np.ascontiguousarray(x_NHWC.transpose(0, 3, 1, 2)), y[:most].astype(np.int64)


def moments(
    images: ImageSet, channels: int, grey: bool, normalise: Literal["own", "cifar", "off"]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the deviation that every channel is normalised with.

    Of grey made from colour, the mean is exact, and the deviation is the mean of the colours': near enough, for it only
    sets the scale.
    """
    if normalise == "off":
        return (0.0,) * channels, (1.0,) * channels
    mean, std = CIFAR if normalise == "cifar" else (images.mean, images.std)
    if len(mean) == channels and not (grey and normalise == "own"):
        return mean, std
    grey_mean = sum(map(mul, GREY, mean)) if len(mean) == 3 else mean[0]
    return (grey_mean,) * channels, (sum(std) / len(std),) * channels


@functools.cache
def _on(values: tuple[float, ...], device: torch.device) -> Tensor:
    """(C, 1, 1), brought to the device once: a recorded step must not wait for the host."""
    return torch.tensor(values, device=device)[:, None, None]
