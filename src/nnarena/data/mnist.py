"""MNIST: 70,000 handwritten digits of 28×28 grey pixels (LeCun, Cortes, Burges 1998).

Kept as in Keras' mnist.npz: x_train (60000, 28, 28) and x_test (10000, 28, 28) uint8 from 0 to 255, y_train and
y_test uint8 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nnarena.data.dataset import Arrays, DataSet
from nnarena.data.images import check_images, is_npz, read_idx_files, read_images_npz


def read(paths: Sequence[Path]) -> Arrays:
    """Keras' mnist.npz, or the four IDX files."""
    return read_images_npz(paths[0], "Keras' mnist.npz") if is_npz(paths) else read_idx_files(paths)


def check(arrays: Arrays) -> None:
    check_images(arrays, (28, 28), 10)


SET = DataSet(
    name="mnist",
    summary="70,000 handwritten digits, 28×28 pixels, 10 classes",
    size="11 MB",
    licence="CC BY-SA 3.0",
    source="http://yann.lecun.com/exdb/mnist/ (LeCun, Cortes, Burges 1998)",
    read=read,
    check=check,
    accepts="Keras' mnist.npz, or the four IDX files or their folder, plain or .gz",
    mirrors=(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        "https://s3.amazonaws.com/img-datasets/mnist.npz",
    ),
    # As Keras' own loader names it.
    sha256="731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    rows={"x_train": 60_000, "x_test": 10_000},
    # Of arrays that, written as IDX files, have the MD5 sums known of the original files.
    content="8fc8fc4f0343f34ece1fcfdfb65f0801fac48030ce7c70e62bbb62f64ee2e65b",
)
