"""Walker2d traces: the state of a simulated two-legged walker, frame by frame (Lechner and Hasani 2020).

Kept as `states` (frames, 17) float32, all traces one after another, and `length` (traces,) int64, the frames of
each. The source is a zip archive of one NPY file a trace; traces stand in the numeric order of the file names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet, check_lengths, finite, join, need
from nnarena.data.formats import in_numeric_order, is_zip, read_npy, read_npz, reading

SIZE = 17


def read(paths: Sequence[Path]) -> Arrays:
    """An NPZ file (`states` and `length`, or an object array `x`), or a zip archive or folder of NPY files."""
    if len(paths) != 1:
        raise DataError("The traces come as one file or one folder.")
    path = paths[0]
    if path.is_file() and not is_zip(path):
        raise DataError(f"{path} is neither an NPZ file nor a zip archive.")
    whole = {file.name: read_npy(file) for file in path.glob("[!.]*.npy")} if path.is_dir() else read_npz(path)
    with reading(path, "a file or folder of Walker2d traces"):
        if "states" in whole:
            return {"states": finite(whole["states"], "'states'"), "length": _lengths(whole)}
        series = list(whole["x"]) if "x" in whole else [whole[name] for name in in_numeric_order(whole)]
        states, length = join(series, SIZE, "trace")
        return {"states": states, "length": length}


def check(arrays: Arrays) -> None:
    need(arrays, "states", np.float32, (None, SIZE))
    check_lengths(arrays, "states")


def _lengths(arrays: Arrays) -> np.ndarray:
    if "length" not in arrays or arrays["length"].dtype.kind not in "iu":
        raise DataError("beside 'states' there should be 'length', the frames of each trace")
    return arrays["length"].astype(np.int64)


SET = DataSet(
    name="walker",
    summary="400 traces of a simulated walker, 17 values a frame",
    size="16 MB",
    licence="not stated by its authors",
    source="https://www.mit.edu/~mlechner/ (Lechner, Hasani 2020)",
    read=read,
    check=check,
    accepts="walker.zip, a folder of its .npy files, or an .npz with 'states' and 'length' or with 'x'",
    mirrors=("https://www.mit.edu/~mlechner/walker.zip",),
    rows={"length": 400},
)
