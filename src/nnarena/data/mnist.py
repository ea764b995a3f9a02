"""MNIST: 70,000 handwritten digits of 28×28 grey pixels (LeCun, Cortes, Burges 1998).

Kept as in Keras' mnist.npz: x_train (60000, 28, 28) and x_test (10000, 28, 28) uint8 from 0 to 255, y_train and
y_test uint8 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet, need
from nnarena.data.formats import is_zip, read_idx, read_npz, reading

KEYS = ("x_train", "y_train", "x_test", "y_test")


def read(paths: Sequence[Path]) -> Arrays:
    """Keras' mnist.npz, or the four IDX files."""
    if len(paths) == 1 and paths[0].is_file() and is_zip(paths[0]):
        arrays = read_npz(paths[0])
        with reading(paths[0], "an NPZ file like Keras' mnist.npz"):
            return {key: _bytes(arrays, key) for key in KEYS}
    files = [file for path in paths for file in (sorted(path.glob("*ubyte*")) if path.is_dir() else [path])]
    arrays = {}
    for file in files:
        array = read_idx(file)
        key = _key(file, array)
        if key in arrays:
            # The same file plain and compressed side by side is common, and harmless.
            if not np.array_equal(arrays[key], array):
                raise DataError(f"{file} and another file both claim to hold {key!r}, with different numbers.")
            continue
        arrays[key] = array
    absent = [key for key in KEYS if key not in arrays]
    if absent:
        where = ", ".join(map(str, paths))
        raise DataError(f"{where}: the four IDX files are needed, and {', '.join(absent)} did not turn up.")
    return {key: np.ascontiguousarray(arrays[key]) for key in KEYS}


def check(arrays: Arrays) -> None:
    for part in ("train", "test"):
        images = need(arrays, f"x_{part}", np.uint8, (None, 28, 28))
        labels = need(arrays, f"y_{part}", np.uint8, (None,))
        if not len(images) or len(images) != len(labels):
            raise DataError(f"there are {len(images)} {part} images and {len(labels)} labels")
        if labels.max() > 9:
            raise DataError(f"a label in y_{part} is {labels.max()}, and digits go from 0 to 9")


def _key(file: Path, array: np.ndarray) -> str:
    """Images or labels by what the file holds, train or test by what it is called."""
    name = file.name.lower()
    parts = {"train": "train", "t10k": "test", "test": "test"}
    part = next((part for word, part in parts.items() if word in name), None)
    if part is None:
        raise DataError(f"Cannot tell whether {file} is for training or test: its name should say train or t10k.")
    if array.dtype != np.uint8 or array.ndim not in (1, 3):
        raise DataError(
            f"{file} holds {array.dtype} of shape {array.shape}, and MNIST holds images and labels of bytes."
        )
    return f"{'x' if array.ndim == 3 else 'y'}_{part}"


def _bytes(arrays: Arrays, key: str) -> np.ndarray:
    """Labels and pixels as bytes, in whatever whole numbers they were stored."""
    if key not in arrays:
        raise DataError(f"the array {key!r} is missing (there are {', '.join(map(repr, arrays)) or 'none'})")
    array = arrays[key]
    if array.dtype == np.uint8 or array.dtype.kind not in "iu" or not array.size:
        return array
    if array.min() < 0 or array.max() > 255:
        raise DataError(f"{key!r} goes from {array.min()} to {array.max()}, and should stay within 0 and 255")
    return array.astype(np.uint8)


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
