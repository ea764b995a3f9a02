"""Fashion-MNIST: 70,000 pieces of clothing of 28×28 grey pixels (Xiao, Rasul, Vollgraf 2017).

Same format, same sizes and same number of classes as MNIST: T-shirt, trousers, pullover, dress, coat, sandal, shirt,
sneaker, bag, ankle boot.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nnarena.data.dataset import Arrays, DataSet, Remote
from nnarena.data.images import check_images, is_npz, read_idx_files, read_images_npz

SITES = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
# As the authors name them in the README of zalandoresearch/fashion-mnist.
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


# In the order of the labels, as the authors' table has them.
CLASSES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def read(paths: Sequence[Path]) -> Arrays:
    """An NPZ file, or the four IDX files."""
    return read_images_npz(paths[0], "Keras' mnist.npz") if is_npz(paths) else read_idx_files(paths)


def check(arrays: Arrays) -> None:
    check_images(arrays, (28, 28), 10)


SET = DataSet(
    name="fashion_mnist",
    summary="70,000 pieces of clothing, 28×28 pixels, 10 classes",
    size="31 MB",
    licence="MIT",
    source="https://github.com/zalandoresearch/fashion-mnist (Xiao, Rasul, Vollgraf 2017)",
    read=read,
    check=check,
    accepts="the four IDX files or their folder, plain or .gz, or an .npz with x_train, y_train, x_test, y_test",
    files=tuple(Remote(name, tuple(site + name for site in SITES), md5) for name, md5 in MD5.items()),
    rows={"x_train": 60_000, "x_test": 10_000},
    # Of the arrays in Debian's package dataset-fashion-mnist.
    content="37e5852d33933792bfddacf387e185c9c3d87fa20c45417517512181f092a44a",
    classes=CLASSES,
)
