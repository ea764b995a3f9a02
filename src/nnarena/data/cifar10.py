"""CIFAR-10: 60,000 photographs of 32×32 coloured pixels in 10 classes (Krizhevsky 2009).

Kept as x_train (50000, 32, 32, 3) and x_test (10000, 32, 32, 3) uint8, y_train and y_test uint8 classes: airplane,
automobile, bird, cat, deer, dog, frog, horse, ship, truck.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nnarena.data.cifar import read_cifar
from nnarena.data.dataset import Arrays, DataSet, Remote
from nnarena.data.images import check_images, is_npz, read_images_npz

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}


def read(paths: Sequence[Path]) -> Arrays:
    """The archive as published, python or binary, its unpacked files, or an NPZ file."""
    if is_npz(paths):
        return read_images_npz(paths[0], "ours")
    return read_cifar(paths, PARTS, "labels", 1)


def check(arrays: Arrays) -> None:
    check_images(arrays, (32, 32, 3), 10)


SET = DataSet(
    name="cifar10",
    summary="60,000 photographs, 32×32 coloured pixels, 10 classes",
    size="170 MB",
    licence="not stated by its authors",
    source="https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009)",
    read=read,
    check=check,
    accepts="cifar-10-python.tar.gz, cifar-10-binary.tar.gz, the folder they unpack to, "
    "or an .npz with x_train, y_train, x_test, y_test",
    # As the page above names it.
    files=(
        Remote(
            "cifar-10-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            "c58f30108f718f92721af3b95e74349a",
        ),
    ),
    rows={"x_train": 50_000, "x_test": 10_000},
    classes=CLASSES,
)
