"""Small digits as images: a real task that needs no download."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask


@task("digits_image", reference="Alpaydin, Kaynak 1998, https://doi.org/10.24432/C50P49")
class DigitsImage(ImageTask):
    """Tell which digit an image of 8×8 pixels shows; the task `digits` reads the same as a sequence.

    x: (1, 8, 8); y: one of 10 classes.

    Nobody has set images aside: the protocol splits all 1,797. They ship with NNArena.
    """

    # Mean and deviation of the pixels: `tests/tasks/test_images.py` measures them again.
    images = ImageSet("digits", (1, 8, 8), 10, (0.3053,), (0.3760,), white=16)
