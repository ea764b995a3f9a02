"""Small files in the true formats."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

IDX_NAMES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def ragged(series: list[np.ndarray]) -> np.ndarray:
    array = np.empty(len(series), object)
    array[:] = series
    return array


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, arrays: dict[str, np.ndarray], compressed: bool) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for key, name in IDX_NAMES.items():
        raw = idx_bytes(arrays[key])
        paths.append(folder / (name + ".gz" * compressed))
        paths[-1].write_bytes(gzip.compress(raw) if compressed else raw)
    return paths
