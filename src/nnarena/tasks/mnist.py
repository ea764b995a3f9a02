"""MNIST read as a sequence of chunks of pixels."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.core.errors import BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.data import load

PIXELS = 28 * 28


@task("mnist", reference="LeCun, Cortes, Burges 1998; as a sequence: Le, Jaitly, Hinton 2015")
class MNIST(Task):
    """Tell which digit a 28×28 image shows, read as 98 chunks of 8 pixels, row by row.

    x: (784 / chunk, chunk), pixels from 0 to 255; y: one of 10 classes.

    The images for training and those for the test are joined, and the first `samples` are taken; the protocol splits
    them anew. Pixels enter as the plain numbers 0–255 because the published arena has it so; `divide_by=255` gives
    most models an easier start. `chunk=1` is the classic one pixel at a time.

    Options:
        samples: samples at most
        chunk: pixels a step; must divide 784
        divide_by: what the pixel values are divided by
    """

    def __init__(self, *, samples: int = 40_000, chunk: int = 8, divide_by: float = 1.0) -> None:
        check_image_options("mnist", PIXELS, samples, chunk, divide_by)
        self.most, self.divide_by = samples, divide_by
        self.spec = TaskSpec(input_shape=(PIXELS // chunk, chunk), output_size=10, target="class")

    def check(self) -> None:
        load("mnist")

    def samples(self, rng: np.random.Generator) -> Samples:
        arrays = load("mnist")
        # Cut before joining: float32 needs four times the room.
        images = [arrays[key][: self.most] for key in ("x_train", "x_test")]
        inputs = np.concatenate(images)[: self.most].reshape(-1, *self.spec.input_shape)
        targets = np.concatenate([arrays["y_train"], arrays["y_test"]])[: self.most]
        return Samples(scaled(inputs, self.divide_by), targets.astype(np.int64))


def check_image_options(name: str, pixels: int, samples: int, chunk: int, divide_by: float) -> None:
    if samples < 1:
        raise BadOption(f"{name}: option 'samples' takes a whole number above 0, not {samples}.")
    if chunk < 1 or pixels % chunk:
        near = [size for size in range(1, pixels + 1) if pixels % size == 0]
        raise BadOption(f"{name}: option 'chunk' must divide {pixels}, and {chunk} does not; these do: {near}.")
    if not 0 < divide_by < float("inf"):
        raise BadOption(f"{name}: option 'divide_by' takes a number above 0, not {divide_by}.")


def scaled(pixels: np.ndarray, divide_by: float) -> np.ndarray:
    return pixels.astype(np.float32) / np.float32(divide_by)
