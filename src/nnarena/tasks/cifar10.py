"""CIFAR-10: small photographs in ten classes."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask


@task("cifar10", reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images")
class CIFAR10(ImageTask):
    """Tell which of ten things a photograph of 32×32 pixels shows.

    x: (3, 32, 32); y: one of 10 classes.

    The 50,000 published training images are for training and validation, the 10,000 others for the test. The usual
    augmentation is `pad_crop+flip`.
    """

    # Mean and deviation of the pixels: `pytest -m data tests/tasks/test_images.py` measures them again.
    images = ImageSet("cifar10", (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
