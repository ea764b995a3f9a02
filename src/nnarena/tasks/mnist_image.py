"""MNIST as images."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask

# Mean and deviation of the pixels: `tests/tasks/test_images.py -m data` measures them again.
IMAGES = ImageSet("mnist", (1, 28, 28), 10, (0.1307,), (0.3081,))


@task("mnist_image", reference="LeCun, Cortes, Burges 1998")
class MNISTImage(ImageTask):
    """Tell which digit a grey image of 28×28 pixels shows; the task `mnist` reads the same as a sequence.

    x: (1, 28, 28); y: one of 10 classes.

    The 60,000 published training images are for training and validation, the 10,000 others for the test, cut to whole
    batches.

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
        samples: int = 70_000,
        size: int | None = None,
        augment: str | None = None,
        test_views: str | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__(
            IMAGES,
            name="mnist_image",
            samples=samples,
            size=size,
            augment=augment,
            test_views=test_views,
            normalise=normalise,
        )
