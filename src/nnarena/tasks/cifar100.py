"""CIFAR-100: small photographs in a hundred classes."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask


@task("cifar100", reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images")
class CIFAR100(ImageTask):
    """Tell which of a hundred things a photograph of 32×32 pixels shows.

    x: (3, 32, 32); y: one of 100 classes.

    The 50,000 published training images are for training and validation, the 10,000 others for the test. The usual
    augmentation is `pad_crop+flip`.
    """

    # Not measured here, but published by weiaicunzai/pytorch-cifar100 with sixteen digits.
    # `pytest -m data tests/tasks/test_images.py` measures them where the files are.
    images = ImageSet("cifar100", (3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
