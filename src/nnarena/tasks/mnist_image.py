"""MNIST as images."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.images import ImageSet, ImageTask


@task("mnist_image", reference="LeCun, Cortes, Burges 1998")
class MNISTImage(ImageTask):
    """Tell which digit a grey image of 28×28 pixels shows; the task `mnist` reads the same as a sequence.

    x: (1, 28, 28); y: one of 10 classes.

    The 60,000 published training images are for training and validation, the 10,000 others for the test.
    """

    # Mean and deviation of the pixels: `pytest -m data tests/tasks/test_images.py` measures them again.
    images = ImageSet("mnist", (1, 28, 28), 10, (0.1307,), (0.3081,))
