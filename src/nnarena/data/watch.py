"""Smartwatch recordings of seven shoulder exercises (Burns et al. 2018), from the package seglearn.

Kept as `frames` (frames, 6) float32, accelerometer then gyroscope, x, y and z of each, 50 frames a second, all
recordings one after another; `length` (recordings,) int64; `y` and `subject` (recordings,) int64; and `label`, the
names of the exercises.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet, check_lengths, finite, join, need
from nnarena.data.formats import is_npy, is_zip, read_npy, read_npz, reading

SIZE = 6
CLASSES = 7
NUMBERS = ("y", "subject")


def read(paths: Sequence[Path]) -> Arrays:
    """seglearn's watch_dataset.npy, or an NPZ file (`frames` and `length`, or an object array `x`)."""
    if len(paths) != 1:
        raise DataError("The recordings come as one file.")
    path = paths[0]
    if path.is_dir() or not (is_zip(path) or is_npy(path)):
        raise DataError(f"{path} is neither an NPZ file nor an NPY file.")
    whole = _rename(path) if is_npy(path) else read_npz(path)
    with reading(path, "a file of smartwatch recordings"):
        needed = [*NUMBERS, "label"] + (["length"] if "frames" in whole else ["x"])
        for key in needed:
            if key not in whole:
                raise DataError(f"{key!r} is missing (there are {', '.join(map(repr, whole)) or 'none'})")
        if "frames" in whole:
            frames, length = finite(whole["frames"], "'frames'"), whole["length"]
        else:
            frames, length = join(list(whole["x"]), SIZE, "recording")
        numbers = {key: _integers(whole[key], key) for key in NUMBERS}
        label = np.asarray(whole["label"])
        label = label.astype(str) if label.dtype == object else label
        return {"frames": frames, "length": _integers(length, "length"), **numbers, "label": label}


def check(arrays: Arrays) -> None:
    need(arrays, "frames", np.float32, (None, SIZE))
    check_lengths(arrays, "frames")
    series = len(arrays["length"])
    y = need(arrays, "y", np.int64, (series,))
    need(arrays, "subject", np.int64, (series,))
    if arrays.get("label", y).dtype.kind != "U" or arrays["label"].shape != (CLASSES,):
        raise DataError(f"'label' should hold the names of the {CLASSES} exercises")
    if y.min() < 0 or y.max() >= CLASSES:
        raise DataError(f"'y' goes from {y.min()} to {y.max()}, and there are {CLASSES} exercises")


def _rename(path: Path) -> Arrays:
    """The pickled dictionary of seglearn in the words of our NPZ files."""
    array = read_npy(path)
    with reading(path, "seglearn's watch_dataset.npy"):
        found = array.item() if array.shape == () else None
        if not isinstance(found, dict):
            raise DataError("it does not hold a dictionary")
        names = {"X": "x", "y": "y", "subject": "subject", "y_labels": "label"}
        return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}


def _integers(values: object, key: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise DataError(f"{key!r} should hold whole numbers, and holds {array.dtype}")
    return array.astype(np.int64)


SET = DataSet(
    name="watch",
    summary="140 smartwatch recordings of 7 shoulder exercises, 6 values a frame",
    size="17 MB",
    licence="BSD 3-Clause",
    source="https://github.com/dmbee/seglearn (Burns et al. 2018, arXiv:1802.01489)",
    read=read,
    check=check,
    accepts="seglearn's watch_dataset.npy, or an .npz with 'x', 'y', 'subject' and 'label'",
    mirrors=("https://raw.githubusercontent.com/dmbee/seglearn/master/seglearn/data/watch_dataset.npy",),
    # Of the file in seglearn 1.2.5 from PyPI, which is the blob 5b293ea80f6b of the repository.
    sha256="eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537",
    rows={"length": 140},
    content="fff478d476a3ce311dd37b1523a08ad298ad8c10ba5ba4c6ef9a17e5cd495fdd",
)
