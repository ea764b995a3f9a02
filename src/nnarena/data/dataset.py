"""What a data set says of itself. Each lives in one file of this room, as `SET = DataSet(...)`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Remote:
    """One of several files of a set: its name, addresses of one and the same file, and its MD5 or SHA-256."""

    name: str
    mirrors: tuple[str, ...]
    checksum: str = ""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One data set: where it comes from, how its files are read, and how one sees that they are whole.

    read      files of any accepted format to arrays; raises DataError with a sentence
    check     raises DataError when arrays of the right names do not fit together
    mirrors   addresses of one and the same file, tried in order
    sha256    of that file, where a trustworthy source names it
    files     instead of mirrors and sha256: files of several names, or with an MD5 only
    rows      the length that some arrays of the complete set have
    content   `digest` of the complete set's arrays, where it is known
    shipped   the file inside the package, for a set that needs no download
    accepts   what `nnarena data import` takes, for error messages
    classes   what its classes are called, in the order of their numbers, where they have names
    """

    name: str
    summary: str
    size: str
    licence: str
    source: str
    read: Callable[[Sequence[Path]], Arrays]
    check: Callable[[Arrays], None]
    accepts: str
    mirrors: tuple[str, ...] = ()
    sha256: str = ""
    files: tuple[Remote, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    content: str = ""
    shipped: Path | None = None
    classes: tuple[str, ...] = ()

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """What to download."""
        return self.files or (Remote("", self.mirrors, self.sha256),)

    def missing_rows(self, arrays: Arrays) -> str:
        """`x_train has 6 rows instead of 60000`, or nothing when the set is complete."""
        wrong = [
            f"{key} has {len(arrays[key])} rows instead of {count}"
            for key, count in self.rows.items()
            if len(arrays[key]) != count
        ]
        return " and ".join(wrong)

    def difference(self, arrays: Arrays) -> str:
        """How the arrays differ from the published set, as far as we can know; empty when they do not."""
        short = self.missing_rows(arrays)
        if short or not self.content or digest(arrays) == self.content:
            return short
        return "its numbers are not those of the published set"


def digest(arrays: Arrays) -> str:
    """A SHA-256 of names, types, shapes and numbers, the same however the arrays were stored."""
    total = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        total.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def need(arrays: Arrays, key: str, dtype: type | np.dtype, shape: tuple[int | None, ...]) -> np.ndarray:
    """The array `key`, which must have this type and shape (None: any length); DataError says what it has."""
    if key not in arrays:
        raise DataError(f"the array {key!r} is missing (there are {', '.join(map(repr, arrays)) or 'none'})")
    array = arrays[key]
    fits = array.ndim == len(shape) and all(b in (None, a) for a, b in zip(array.shape, shape, strict=True))
    if array.dtype != dtype or not fits:
        wanted = "(" + ", ".join("n" if size is None else str(size) for size in shape) + ")"
        raise DataError(
            f"{key!r} should be {np.dtype(dtype).name} of shape {wanted}, and is {array.dtype} of {array.shape}"
        )
    return array


def check_lengths(arrays: Arrays, *flat: str) -> None:
    """`length` must cut the flat arrays into whole series."""
    length = need(arrays, "length", np.int64, (None,))
    if not len(length) or length.min() < 1:
        raise DataError("'length' should hold the rows of each series, at least one series of one row")
    for key in flat:
        if len(arrays[key]) != length.sum():
            raise DataError(f"{key!r} has {len(arrays[key])} rows, and the lengths add up to {length.sum()}")


def finite(values: np.ndarray, what: str) -> np.ndarray:
    """`values` as float32, all of them finite."""
    if values.dtype.kind not in "fiu":
        raise DataError(f"{what} should hold numbers, and holds {values.dtype}")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{what} holds numbers that are not finite")
    return values


def join(series: Sequence[np.ndarray], width: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Series of (T, width) as one flat float32 array, and the length of each."""
    if not len(series):
        raise DataError(f"there is no {what} in it")
    for place, one in enumerate(series):
        if not isinstance(one, np.ndarray) or one.ndim != 2 or one.shape[1] != width or not len(one):
            shape = getattr(one, "shape", type(one).__name__)
            raise DataError(f"{what} {place} should have shape (n, {width}), and has {shape}")
    flat = np.concatenate([finite(one, f"{what} {place}") for place, one in enumerate(series)])
    return np.ascontiguousarray(flat), np.array([len(one) for one in series], np.int64)
