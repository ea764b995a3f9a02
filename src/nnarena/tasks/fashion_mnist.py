"""Fashion-MNIST: pieces of clothing."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask

# Mean and deviation of the pixels: `tests/tasks/test_images.py -m data` measures them again.
IMAGES = ImageSet("fashion_mnist", (1, 28, 28), 10, (0.2860,), (0.3530,))


@task("fashion_mnist", reference="Xiao, Rasul, Vollgraf 2017, https://arxiv.org/abs/1708.07747")
class FashionMNIST(ImageTask):
    """Tell which piece of clothing a grey image of 28×28 pixels shows.

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
            name="fashion_mnist",
            samples=samples,
            size=size,
            augment=augment,
            test_views=test_views,
            normalise=normalise,
        )
