"""Small digits, 8×8, read as a sequence of chunks of pixels: a real task that needs no download."""

from __future__ import annotations

import numpy as np

from nnarena.core.components import task
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.tasks.mnist import check_image_options, scaled

PIXELS = 8 * 8


@task("digits", reference="Alpaydin, Kaynak 1998, https://doi.org/10.24432/C50P49")
class Digits(Task):
    """Tell which digit an 8×8 image shows, read as 16 chunks of 4 pixels, row by row.

    x: (64 / chunk, chunk), pixels from 0 to 1; y: one of 10 classes.

    Not a task of the published arena: it is here because it is real, ships with NNArena, and an epoch takes less
    than a second. The 1,797 images are the test part of "Optical Recognition of Handwritten Digits" (UCI, CC BY 4.0),
    whose pixels go from 0 to 16.

    Options:
        samples: samples at most
        chunk: pixels a step; must divide 64
        divide_by: what the pixel values are divided by
    """

    def __init__(self, *, samples: int = 1797, chunk: int = 4, divide_by: float = 16.0) -> None:
        check_image_options("digits", PIXELS, samples, chunk, divide_by)
        self.most, self.divide_by = samples, divide_by
        self.spec = TaskSpec(input_shape=(PIXELS // chunk, chunk), output_size=10, target="class")

    def samples(self, rng: np.random.Generator) -> Samples:
        from nnarena.data import load

        arrays = load("digits")
        inputs = arrays["x"][: self.most].reshape(-1, *self.spec.input_shape)
        return Samples(scaled(inputs, self.divide_by), arrays["y"][: self.most].astype(np.int64))
