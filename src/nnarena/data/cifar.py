"""The file formats of CIFAR-10 and CIFAR-100 (Krizhevsky 2009): an archive of batches, in two versions.

python   every batch is a pickle of a dictionary: `data` (N, 3072) uint8, `labels` or `fine_labels` a list
binary   every image is a row of its labels, one byte each, and 3072 bytes

The 3072 bytes are 1024 of red, then of green, then of blue, each row by row. Pickles are read by `SafeUnpickler`,
which builds arrays and plain values and refuses all else.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays
from nnarena.data.formats import SafeUnpickler, reading
from nnarena.data.images import KEYS, as_bytes

PIXELS = 3 * 32 * 32
Parts = Mapping[str, Sequence[str]]  # "train" and "test": the names of their batches, without .bin


def read_cifar(paths: Sequence[Path], parts: Parts, labels: str, label_bytes: int) -> Arrays:
    """The archive of either version, or its unpacked files or their folder.

    `labels` is what the pickles call the labels; `label_bytes` is how many a row has, of which the last counts.
    """
    wanted = {name for names in parts.values() for name in names}
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for path in paths:
        with reading(path, "an archive of CIFAR's batches"):
            for file, content in _files(path):
                name = file.name.removesuffix(".bin")
                if name in wanted and name not in found:
                    with reading(str(file), "a batch of CIFAR"):
                        binary = file.name.endswith(".bin")
                        found[name] = from_rows(content(), label_bytes) if binary else from_pickle(content(), labels)
    absent = [name for names in parts.values() for name in names if name not in found]
    if absent:
        where = ", ".join(map(str, paths))
        raise DataError(f"{where}: the batches {', '.join(absent)} did not turn up.")
    arrays = {}
    for part, names in parts.items():
        arrays[f"x_{part}"] = np.concatenate([found[name][0] for name in names])
        arrays[f"y_{part}"] = np.concatenate([found[name][1] for name in names])
    return {key: arrays[key] for key in KEYS}


def from_pickle(raw: bytes, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 32, 32, 3) and labels (N,) of a pickled batch, as Python 2 wrote it."""
    batch = SafeUnpickler(io.BytesIO(raw), encoding="bytes").load()
    if not isinstance(batch, dict):
        raise DataError("it does not hold a dictionary")
    named = {key.decode("ascii") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    for key in ("data", labels):
        if key not in named:
            raise DataError(f"{key!r} is missing (there are {', '.join(map(repr, named)) or 'none'})")
    data = named["data"]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise DataError(f"'data' should be uint8 of shape (n, {PIXELS})")
    classes = as_bytes(np.asarray(named[labels]), repr(labels))
    if classes.dtype != np.uint8 or classes.shape != (len(data),):
        raise DataError(f"there are {len(data)} images, and {labels!r} does not hold a class for each")
    return images(data), classes


def from_rows(raw: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The same of a binary batch; the last label of a row is the fine one."""
    width = label_bytes + PIXELS
    if not raw or len(raw) % width:
        raise DataError(f"it has {len(raw)} bytes, and an image takes {width}: it is cut short, or of another set")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return images(rows[:, label_bytes:]), rows[:, label_bytes - 1].copy()


def images(planes: np.ndarray) -> np.ndarray:
    """(N, 3072) planes of colour as (N, 32, 32, 3)."""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _files(path: Path) -> Iterator[tuple[PurePosixPath, Callable[[], bytes]]]:
    """The files of a folder, of an archive, or a single one: their names, and how to read them."""
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.is_file():
                yield PurePosixPath(file), file.read_bytes
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield PurePosixPath(member.name), stream.read
    else:
        yield PurePosixPath(path), path.read_bytes
