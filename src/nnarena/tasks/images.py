"""What tasks on images have in common: bytes on the device, numbers for the model, and random changes in training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nnarena.core.errors import BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.data import catalogue, load
from nnarena.tasks.augment import parse, parse_views, resize, views

SMALLEST, LARGEST = 4, 1024


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
    """Tell what an image shows. N images, C channels, H×W pixels.

    x: (C, H, W), kept as bytes (N, C, H, W) and turned into numbers batch by batch: divided by the largest value,
    resized, changed at random in training, and then normalised with the mean and deviation of the training images.
    Validation and test may look at several views of an image and average.

    Where the publisher has set images aside for the test, they are the test; the protocol takes the validation's
    share from the others, and cuts all to whole batches.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        name: str,
        samples: int,
        size: int | None,
        augment: str | None,
        test_views: str | None,
        normalise: bool,
    ) -> None:
        if samples < 1:
            raise BadOption(f"{name}: option 'samples' takes a whole number above 0, not {samples}.")
        if size is not None and not SMALLEST <= size <= LARGEST:
            raise BadOption(f"{name}: option 'size' takes a whole number from {SMALLEST} to {LARGEST}, not {size}.")
        channels, *sides = images.shape
        shape = (channels, *(sides if size is None else (size, size)))
        self.images, self.most, self.size, self.normalise = images, samples, size, normalise
        self.augmentation = parse(augment, shape, name)
        self.test_views = parse_views(test_views, name)
        self.noise = self.augmentation.numbers
        self.spec = TaskSpec(input_shape=shape, output_size=images.classes, target="class")

    def check(self) -> None:
        load(self.images.name)

    def samples(self, rng: np.random.Generator) -> Samples:
        path = next(entry.path for entry in catalogue() if entry.name == self.images.name)
        return _samples(self.images, self.most, path, path.stat().st_mtime_ns if path.exists() else 0)

    def present(self, inputs: tuple[Tensor, ...], noise: Tensor | None) -> tuple[Tensor, ...]:
        x_BCHW = inputs[0].float() / self.images.white
        if self.size is not None:
            x_BCHW = resize(x_BCHW, self.size)
        if noise is not None:
            x_BCHW = self.augmentation(x_BCHW, noise)
        if self.normalise:
            mean, std = (_channels(values, x_BCHW.device) for values in (self.images.mean, self.images.std))
            x_BCHW = (x_BCHW - mean) / std
        return (x_BCHW, *inputs[1:])

    def answer(self, model: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        """Log probabilities, averaged as probabilities over the views; the plain answer where there is one view."""
        if not self.test_views:
            return model(*inputs)
        answers = [model(x_BCHW, *inputs[1:]).log_softmax(-1) for x_BCHW in views(inputs[0], self.test_views)]
        return torch.stack(answers).logsumexp(0) - math.log(len(answers))


@functools.lru_cache(maxsize=1)
def _samples(images: ImageSet, most: int, path: Path, written: int) -> Samples:
    """The first images of a file as it is now, once for all seeds: nothing about them is random."""
    arrays = load(images.name)
    if "x" in arrays:  # nothing was set aside
        return Samples(*_part(images, arrays["x"], arrays["y"], most))
    total = len(arrays["x_train"]) + len(arrays["x_test"])
    count = min(most, total)
    train = round(count * len(arrays["x_train"]) / total)  # fewer of both, in proportion
    learn, test = (
        _part(images, arrays[f"x_{part}"], arrays[f"y_{part}"], share)
        for part, share in (("train", train), ("test", count - train))
    )
    inputs, targets = (np.concatenate(pair) for pair in zip(learn, test, strict=True))
    return Samples(inputs, targets, set_aside=np.arange(count) >= train)


def _part(images: ImageSet, x: np.ndarray, y: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Images as (N, C, H, W) bytes, and their classes."""
    channels, *sides = images.shape
    x_NHWC = x[:most].reshape(-1, *sides, channels)
    return np.ascontiguousarray(x_NHWC.transpose(0, 3, 1, 2)), y[:most].astype(np.int64)


@functools.cache
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """(C, 1, 1), brought to the device once: a recorded step must not wait for the host."""
    return torch.tensor(values, device=device)[:, None, None]
