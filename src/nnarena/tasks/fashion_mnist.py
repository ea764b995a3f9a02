"""Fashion-MNIST: pieces of clothing."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask


@task("fashion_mnist", reference="Xiao, Rasul, Vollgraf 2017, https://arxiv.org/abs/1708.07747")
class FashionMNIST(ImageTask):
    """Tell which piece of clothing a grey image of 28×28 pixels shows.

    x: (1, 28, 28); y: one of 10 classes.

    The 60,000 published training images are for training and validation, the 10,000 others for the test.
    """

    # Mean and deviation of the pixels: `pytest -m data tests/tasks/test_images.py` measures them again.
    images = ImageSet("fashion_mnist", (1, 28, 28), 10, (0.2860,), (0.3530,))
