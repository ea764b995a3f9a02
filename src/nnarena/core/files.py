"""Files that are whole or not there: everything is written beside its place and renamed into it."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nnarena.core.errors import StoreError

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: a NaN or an infinity is written as null, so that every reader can read it."""
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged: it is not JSON ({error}).") from error


def finite(value: Any) -> Any:
    """`value` with every float that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


@contextmanager
def locked(folder: Path, patience: float, busy: str) -> Iterator[None]:
    """One process at a time; StoreError says `busy`. A lock dies with its process: a crash leaves none behind."""
    try:
        import fcntl
    except ImportError:  # a system without file locks
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise StoreError(busy) from error
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def disk_is_full(error: OSError) -> bool:
    return error.errno in FULL_DISK


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
