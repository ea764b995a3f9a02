"""CIFAR-10: small photographs in ten classes."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask

# Mean and deviation of the pixels: `tests/tasks/test_images.py -m data` measures them again.
IMAGES = ImageSet("cifar10", (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@task("cifar10", reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images")
class CIFAR10(ImageTask):
    """Tell which of ten things a photograph of 32×32 pixels shows.

    x: (3, 32, 32); y: one of 10 classes.

    The 50,000 published training images are for training and validation, the 10,000 others for the test, cut to whole
    batches. The usual augmentation is `pad_crop+flip`.

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
        samples: int = 60_000,
        size: int | None = None,
        augment: str | None = None,
        test_views: str | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__(
            IMAGES,
            name="cifar10",
            samples=samples,
            size=size,
            augment=augment,
            test_views=test_views,
            normalise=normalise,
        )
