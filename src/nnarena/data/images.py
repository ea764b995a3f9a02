"""What sets of labelled images have in common: `x_train`, `y_train`, `x_test`, `y_test`, all of bytes.

Grey images are (N, H, W) and coloured ones (N, H, W, 3), as in Keras' NPZ files; labels are (N,).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, need
from nnarena.data.formats import is_zip, read_idx, read_npz, reading

KEYS = ("x_train", "y_train", "x_test", "y_test")


def is_npz(paths: Sequence[Path]) -> bool:
    """Whether it is all in one NPZ file."""
    return len(paths) == 1 and paths[0].is_file() and is_zip(paths[0])


def read_images_npz(path: Path, like: str) -> Arrays:
    """The four arrays of an NPZ file; `like` names one that everybody knows."""
    arrays = read_npz(path)
    with reading(path, f"an NPZ file like {like}"):
        return {key: _bytes(arrays, key) for key in KEYS}


def read_idx_files(paths: Sequence[Path]) -> Arrays:
    """The four IDX files, or their folder, plain or compressed."""
    files = [file for path in paths for file in (sorted(path.glob("*ubyte*")) if path.is_dir() else [path])]
    arrays = {}
    for file in files:
        array = read_idx(file)
        key = _idx_key(file, array)
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


def check_images(arrays: Arrays, shape: tuple[int, ...], classes: int) -> None:
    """As many labels as images, images of this shape, and no label beyond the last class."""
    for part in ("train", "test"):
        images = need(arrays, f"x_{part}", np.uint8, (None, *shape))
        labels = need(arrays, f"y_{part}", np.uint8, (None,))
        if not len(images) or len(images) != len(labels):
            raise DataError(f"there are {len(images)} {part} images and {len(labels)} labels")
        if labels.max() >= classes:
            raise DataError(f"a label in y_{part} is {labels.max()}, and the classes go from 0 to {classes - 1}")


def part_of(file: Path) -> str:
    """`train` or `test`, by what the file is called."""
    words = {"train": "train", "t10k": "test", "test": "test"}
    part = next((part for word, part in words.items() if word in file.name.lower()), None)
    if part is None:
        raise DataError(f"Cannot tell whether {file} is for training or test: its name should say train, test or t10k.")
    return part


def _idx_key(file: Path, array: np.ndarray) -> str:
    """Images or labels by what the file holds, train or test by what it is called."""
    part = part_of(file)
    if array.dtype != np.uint8 or array.ndim not in (1, 3):
        raise DataError(f"{file} holds {array.dtype} of shape {array.shape}, and not images or labels of bytes.")
    return f"{'x' if array.ndim == 3 else 'y'}_{part}"


def _bytes(arrays: Arrays, key: str) -> np.ndarray:
    """Labels and pixels as bytes, in whatever whole numbers they were stored; labels (N, 1) as (N,)."""
    if key not in arrays:
        raise DataError(f"the array {key!r} is missing (there are {', '.join(map(repr, arrays)) or 'none'})")
    array = arrays[key]
    if key.startswith("y") and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return as_bytes(array, repr(key))


def as_bytes(array: np.ndarray, what: str) -> np.ndarray:
    """Whole numbers from 0 to 255 as uint8; others are not what they should be."""
    if array.dtype == np.uint8 or array.dtype.kind not in "iu" or not array.size:
        return array
    if array.min() < 0 or array.max() > 255:
        raise DataError(f"{what} goes from {array.min()} to {array.max()}, and should stay within 0 and 255")
    return array.astype(np.uint8)
