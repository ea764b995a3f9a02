"""Street View House Numbers: cropped digits."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask

# Mean and deviation of the pixels, as they are commonly given for this set.
IMAGES = ImageSet("svhn", (3, 32, 32), 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))


@task("svhn", reference="Netzer et al. 2011, Reading Digits in Natural Images with Unsupervised Feature Learning")
class SVHN(ImageTask):
    """Tell which digit is in the middle of a photograph of a house number.

    x: (3, 32, 32); y: one of 10 classes.

    The 73,257 published training images are for training and validation, the 26,032 others for the test, cut to whole
    batches. A digit that is flipped is none, so `pad_crop` alone is usual.

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
        samples: int = 99_289,
        size: int | None = None,
        augment: str | None = None,
        test_views: str | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__(
            IMAGES,
            name="svhn",
            samples=samples,
            size=size,
            augment=augment,
            test_views=test_views,
            normalise=normalise,
        )
