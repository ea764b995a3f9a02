"""Small digits as images: a real task that needs no download."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask

# Mean and deviation of the pixels: `tests/tasks/test_images.py -m data` measures them again.
IMAGES = ImageSet("digits", (1, 8, 8), 10, (0.3053,), (0.3760,), white=16)


@task("digits_image", reference="Alpaydin, Kaynak 1998, https://doi.org/10.24432/C50P49")
class DigitsImage(ImageTask):
    """Tell which digit an image of 8×8 pixels shows; the task `digits` reads the same as a sequence.

    x: (1, 8, 8); y: one of 10 classes.

    Nobody has set images aside: the protocol splits all 1,797. They ship with NNArena.

    Options:
        samples: images at most
        size: pixels a side, where it shall be another one
        augment: random changes of the training images, as in pad_crop:4+flip; there are pad_crop, flip, cutout, erase,
            rotate, zoom, brightness, contrast, colour_jitter, noise and greyscale
        test_views: flip, shift or flip+shift: validation and test average the answers to an image and its mirror image,
            to the image in its place and a pixel up, down, left and right, or to all ten
        normalise: with the mean and deviation of the training images; otherwise pixels go from 0 to 1
    """

    def __init__(
        self,
        *,
        samples: int = 1797,
        size: int | None = None,
        augment: str | None = None,
        test_views: str | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__(
            IMAGES,
            name="digits_image",
            samples=samples,
            size=size,
            augment=augment,
            test_views=test_views,
            normalise=normalise,
        )
