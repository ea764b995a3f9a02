"""Street View House Numbers, cropped digits: 99,289 of 32×32 coloured pixels (Netzer et al. 2011).

Published as MATLAB files with `X` (32, 32, 3, N) uint8 and `y` (N, 1), where 10 stands for the digit 0. Kept as x_train
(73257, 32, 32, 3) and x_test (26032, 32, 32, 3) uint8, y_train and y_test uint8, where 0 is 0. The third file, of
531,131 easier digits, is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet, Remote
from nnarena.data.formats import read_mat, reading
from nnarena.data.images import KEYS, as_bytes, check_images, is_npz, part_of, read_images_npz

SITE = "http://ufldl.stanford.edu/housenumbers/"
# As torchvision's loader names them; the authors name none.
MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}


def read(paths: Sequence[Path]) -> Arrays:
    """The two MATLAB files or their folder, or an NPZ file."""
    if is_npz(paths):
        return read_images_npz(paths[0], "ours")
    files = [file for path in paths for file in (_in_folder(path) if path.is_dir() else [path])]
    arrays: Arrays = {}
    for file in files:
        part = part_of(file)
        if f"x_{part}" in arrays:
            raise DataError(f"{file} and another file both claim to be for {part}.")
        arrays[f"x_{part}"], arrays[f"y_{part}"] = read_digits(file)
    for name, part in zip(MD5, ("train", "test"), strict=True):
        if f"x_{part}" not in arrays:
            raise DataError(f"{', '.join(map(str, paths))}: {name} did not turn up.")
    return {key: arrays[key] for key in KEYS}


def read_digits(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 32, 32, 3) and digits (N,) of one file."""
    found = read_mat(file, ("X", "y"))
    with reading(file, "a file of SVHN's cropped digits"):
        X, y = found["X"], found["y"]
        if X.dtype != np.uint8 or X.ndim != 4 or X.shape[:3] != (32, 32, 3):
            raise DataError(f"'X' should be uint8 of shape (32, 32, 3, n), and is {X.dtype} of {X.shape}")
        if y.shape != (X.shape[3], 1) or not np.isin(y, np.arange(1, 11)).all():
            raise DataError(f"'y' should hold a number from 1 to 10 for each of the {X.shape[3]} images")
        digits = as_bytes(y[:, 0].astype(np.int64) % 10, "'y'")
        return np.ascontiguousarray(X.transpose(3, 0, 1, 2)), digits


def check(arrays: Arrays) -> None:
    check_images(arrays, (32, 32, 3), 10)


def _in_folder(folder: Path) -> list[Path]:
    return [folder / name for name in MD5 if (folder / name).is_file()]


SET = DataSet(
    name="svhn",
    summary="99,289 digits of house numbers, 32×32 coloured pixels, 10 classes",
    size="246 MB",
    licence="for non-commercial use only",
    source="http://ufldl.stanford.edu/housenumbers/ (Netzer et al. 2011)",
    read=read,
    check=check,
    accepts="train_32x32.mat and test_32x32.mat or their folder, or an .npz with x_train, y_train, x_test, y_test",
    files=tuple(Remote(name, (SITE + name,), md5) for name, md5 in MD5.items()),
    rows={"x_train": 73_257, "x_test": 26_032},
)
