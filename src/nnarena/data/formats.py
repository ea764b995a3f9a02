"""Reading files that strangers made: NPY, NPZ, zip archives of NPY, IDX, MAT. Nothing in them is ever executed.

NumPy stores object arrays (series of unequal length) as a pickle, and a pickle can run any code. Ours are read by an
unpickler that can build NumPy arrays and numbers, and plain lists, dicts, strings and numbers; it refuses all else.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays

# What NumPy, zipfile, zlib, gzip, struct and pickle raise on files that are cut short, foreign or made to harm.
BROKEN = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    EOFError,
    OSError,
    MemoryError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    tarfile.TarError,
)
IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# The functions that NumPy itself names in its pickles; their module is numpy.core or numpy._core, by version.
RECONSTRUCT = np.empty(0).__reduce__()[0]
SCALAR = np.float64(0).__reduce__()[0]


@contextmanager
def reading(path: Path | str, wanted: str) -> Iterator[None]:
    """Turns whatever goes wrong while reading `path` into one sentence."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path} is not {wanted}: {str(error).rstrip('.')}.") from error
    except FileNotFoundError as error:
        raise DataError(f"There is no file {str(path)!r}.") from error
    except (IsADirectoryError, PermissionError) as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error
    except BROKEN as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise DataError(f"{path} is damaged, or is not {wanted}: {reason[:200]}.") from error


def read_npz(path: Path) -> Arrays:
    """All arrays of an NPZ file (or any zip archive of NPY files), object arrays included."""
    with reading(path, "an NPZ file"), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy") and not _is_hidden(name)]
        return {name.removesuffix(".npy"): _member(archive, name) for name in names}


def read_plain_npz(path: Path) -> Arrays:
    """All arrays of an NPZ file that we wrote: no object arrays, so no pickles."""
    with reading(path, "an NPZ file"), open(path, "rb") as file:
        found = np.load(file, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise DataError("it holds a single array")
        with found:
            return {key: found[key] for key in found.files}


def read_npy(path: Path) -> np.ndarray:
    """The array of an NPY file, an object array included."""
    with reading(path, "an NPY file"), open(path, "rb") as file:
        return parse_npy(file)


def in_numeric_order(names: Iterable[str]) -> list[str]:
    """Paths by the numbers in their file names: trace_2 before trace_10."""

    def key(name: str) -> tuple[list[int], str]:
        numbers = [int(number) for number in re.findall(r"\d+", PurePosixPath(name).name)]
        if not numbers:
            raise DataError(f"the name {name!r} has no number to order it by")
        return numbers, name

    return sorted(names, key=key)


def is_zip(path: Path) -> bool:
    """Whether a file begins like a zip archive, as NPZ files do."""
    return _start(path, 4) in (b"PK\x03\x04", b"PK\x05\x06")


def is_npy(path: Path) -> bool:
    return _start(path, 6) == b"\x93NUMPY"


def parse_npy(file: IO[bytes]) -> np.ndarray:
    """An array in NPY format. Only an object array is unpickled, and only by `SafeUnpickler`."""
    file = io.BytesIO(file.read())
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if not dtype.hasobject:
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    array = SafeUnpickler(file).load()
    if not isinstance(array, np.ndarray) or array.dtype != dtype or math.prod(shape) != array.size:
        raise DataError("its pickle does not hold the array that its header announces")
    return array.reshape(shape)


class SafeUnpickler(pickle.Unpickler):
    """Builds arrays and plain values; every other function or class that a pickle names is refused, not called."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return np.dtype
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return RECONSTRUCT
            case "numpy.core.multiarray" | "numpy._core.multiarray", "scalar":
                return SCALAR
            case "_codecs", "encode":
                return _encode
        raise DataError(f"it asks to run {module}.{name}, and a data file has no business to; nothing was run")


def _encode(text: str, encoding: str) -> bytes:
    """How old pickles spell bytes; the true `_codecs.encode` would look up any codec."""
    if encoding != "latin1":
        raise DataError(f"its pickle spells bytes in {encoding!r}")
    return text.encode("latin1")


def read_idx(path: Path) -> np.ndarray:
    """The array of an IDX file, plain or compressed by gzip.

    Two zero bytes, a type, the rank, a big-endian length for each dimension, then the numbers.
    """
    with reading(path, "an IDX file"):
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES or not raw[3]:
            raise DataError("it does not begin like one")
        dtype, rank = np.dtype(IDX_TYPES[raw[2]]), raw[3]
        shape = struct.unpack_from(f">{rank}I", raw, 4)
        start, wanted = 4 + 4 * rank, math.prod(shape) * dtype.itemsize
        if len(raw) - start != wanted:
            raise DataError(f"it announces {wanted} bytes of numbers and holds {len(raw) - start}")
        return np.frombuffer(raw, dtype, offset=start).reshape(shape)


def read_mat(path: Path, names: Sequence[str]) -> Arrays:
    """Some arrays of a MATLAB file of version 5, compressed or not."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with reading(path, "a MATLAB file of version 5"):
        try:
            with open(path, "rb") as file:
                found = loadmat(file, variable_names=list(names))
        except (MatReadError, NotImplementedError, AssertionError) as error:
            raise DataError(str(error) or "it is cut short") from error
        for name in names:
            if not isinstance(found.get(name), np.ndarray):
                raise DataError(f"the array {name!r} is missing")
        return {name: found[name] for name in names}


def _is_hidden(name: str) -> bool:
    """Files that some systems add to an archive."""
    path = PurePosixPath(name)
    return path.name.startswith(".") or "__MACOSX" in path.parts


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as file:
        return parse_npy(file)


def _start(path: Path, count: int) -> bytes:
    with reading(path, "a file that can be read"), open(path, "rb") as file:
        return file.read(count)
