"""Street View House Numbers: cropped digits."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask


@task("svhn", reference="Netzer et al. 2011, Reading Digits in Natural Images with Unsupervised Feature Learning")
class SVHN(ImageTask):
    """Tell which digit is in the middle of a photograph of a house number.

    x: (3, 32, 32); y: one of 10 classes.

    The 73,257 published training images are for training and validation, the 26,032 others for the test. A digit that
    is flipped is none, so `pad_crop` alone is usual.
    """

    # Not measured here, but published by PatrickZH/DeepCore (deepcore/datasets/svhn.py); others give more digits.
    # `pytest -m data tests/tasks/test_images.py` measures them where the files are.
    images = ImageSet("svhn", (3, 32, 32), 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
