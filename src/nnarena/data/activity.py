"""UCI "Localization Data for Person Activity" (Kaluža et al. 2010): four tags worn by five people, five times each.

A reading a line: `A01,010-000-024-033,633790226051280329,27.05.2009 14:03:25:127,4.06,1.89,0.51,walking`, that is
series, tag, time in units of 100 ns, date, x, y, z, activity.

Kept by series in the order in which they first appear: `tag` (rows,) uint8, an index into TAGS; `time` (rows,) int64
in 100 ns; `position` (rows, 3) float32; `activity` (rows,) uint8, an index into ACTIVITIES; `length` (series,) int64;
`series`, their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet, check_lengths, need
from nnarena.data.formats import is_zip, read_npz, reading

TAGS = ("010-000-024-033", "010-000-030-096", "020-000-033-111", "020-000-032-221")
ACTIVITIES = (
    "lying",
    "lying down",
    "sitting",
    "sitting down",
    "standing up from lying",
    "standing up from sitting",
    "standing up from sitting on the ground",
    "walking",
    "falling",
    "on all fours",
    "sitting on the ground",
)
COLUMNS = 8


def read(paths: Sequence[Path]) -> Arrays:
    """The text file as UCI gives it, or our own NPZ file."""
    if len(paths) != 1 or paths[0].is_dir():
        raise DataError("The readings come as one file, ConfLongDemo_JSI.txt.")
    if is_zip(paths[0]):
        return read_npz(paths[0])
    with reading(paths[0], "the UCI file ConfLongDemo_JSI.txt"):
        return parse(paths[0].read_text(encoding="ascii"))


def parse(text: str) -> Arrays:
    """The readings of the whole text, grouped by series."""
    lines = text.splitlines()
    rows = [line.split(",") for line in lines if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != COLUMNS:
            raise DataError(f"reading {number} has {len(row)} columns instead of {COLUMNS}")
    if not rows:
        raise DataError("it is empty")
    series, tag, time, _, x, y, z, activity = (np.array(column) for column in zip(*rows, strict=True))
    names, first, place = np.unique(series, return_index=True, return_inverse=True)
    # Series in the order of their first reading, and their readings in the order of the file.
    rank = np.argsort(np.argsort(first))[place]
    order = np.argsort(rank, kind="stable")
    position = np.stack([x, y, z], axis=1).astype(np.float64).astype(np.float32)
    if not np.isfinite(position).all():
        raise DataError("a position is not finite")
    return {
        "tag": _index(tag, TAGS, "tag")[order],
        "time": time.astype(np.int64)[order],
        "position": position[order],
        "activity": _index(activity, ACTIVITIES, "activity")[order],
        "length": np.bincount(rank).astype(np.int64),
        "series": names[np.argsort(first)],
    }


def check(arrays: Arrays) -> None:
    tag = need(arrays, "tag", np.uint8, (None,))
    need(arrays, "time", np.int64, (len(tag),))
    need(arrays, "position", np.float32, (len(tag), 3))
    activity = need(arrays, "activity", np.uint8, (len(tag),))
    check_lengths(arrays, "tag")
    if tag.max() >= len(TAGS) or activity.max() >= len(ACTIVITIES):
        raise DataError("a tag or an activity is out of range")
    if arrays.get("series", tag).dtype.kind != "U" or len(arrays["series"]) != len(arrays["length"]):
        raise DataError("'series' should name every series")


def _index(values: np.ndarray, known: tuple[str, ...], what: str) -> np.ndarray:
    names, place = np.unique(values, return_inverse=True)
    for name in names:
        if name not in known:
            raise DataError(f"there is no {what} {str(name)!r}")
    return np.array([known.index(name) for name in names], np.uint8)[place]


SET = DataSet(
    name="activity",
    summary="164,860 positions of 4 tags worn by 5 people, 11 activities",
    size="21 MB",
    licence="CC BY 4.0",
    source="https://archive.ics.uci.edu/dataset/196 (Kaluža et al. 2010)",
    read=read,
    check=check,
    accepts="UCI's text file ConfLongDemo_JSI.txt",
    mirrors=("https://archive.ics.uci.edu/ml/machine-learning-databases/00196/ConfLongDemo_JSI.txt",),
    rows={"length": 25, "tag": 164_860},
)
