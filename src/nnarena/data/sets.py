"""All data sets by name: what there is, get, import, load."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nnarena
from nnarena.core.errors import DataError, UnknownName
from nnarena.data.dataset import Arrays, DataSet, digest
from nnarena.data.download import Progress, Refused, download, file_sha256
from nnarena.data.folder import store, stored_file
from nnarena.data.formats import read_plain_npz, reading


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue. `path` is where the set lies, or will lie."""

    name: str
    summary: str
    size: str
    licence: str
    source: str
    present: bool
    path: Path


@functools.cache
def all_sets() -> dict[str, DataSet]:
    """Every `SET` of this room's files, by name."""
    room = importlib.import_module("nnarena.data")
    modules = [importlib.import_module(f"nnarena.data.{found.name}") for found in pkgutil.iter_modules(room.__path__)]
    sets = [module.SET for module in modules if hasattr(module, "SET")]
    return {one.name: one for one in sorted(sets, key=lambda one: one.name)}


def names() -> list[str]:
    return list(all_sets())


def find(name: str) -> DataSet:
    if name not in all_sets():
        raise UnknownName("data set", name, all_sets())
    return all_sets()[name]


def catalogue() -> list[Entry]:
    """What there is and what is here. Opens no data file."""
    entries = []
    for one in all_sets().values():
        path = one.shipped or stored_file(one.name)
        entries.append(Entry(one.name, one.summary, one.size, one.licence, one.source, path.is_file(), path))
    return entries


def load(name: str) -> Arrays:
    """The arrays of a data set that is here. Never downloads: DataError says what to type."""
    one = find(name)
    path = one.shipped or stored_file(name)
    if not path.is_file():
        raise DataError(
            f"The data set {name!r} is not here: run `nnarena data get {name}`, or `nnarena data import {name} FILE`."
        )
    try:
        arrays = read_plain_npz(path)
        with reading(path, f"the data set {name!r}"):
            one.check(arrays)
    except DataError as error:
        raise DataError(f"{error} Run `nnarena data get {name} --force`, or import it again.") from error
    return arrays


def get(name: str, *, force: bool = False, progress: Progress | None = None) -> Path:
    """Download, verify and keep a data set, unless it is here already. What was there stays until the new is whole."""
    one = find(name)
    if one.shipped:
        return one.shipped
    path = stored_file(name)
    if not force and _is_good(name):
        return path
    instead = f"With the file at hand, run `nnarena data import {name} FILE` ({one.accepts})."
    if os.environ.get("NNARENA_OFFLINE", "0") not in ("", "0"):
        raise DataError(f"NNARENA_OFFLINE is set, so {name!r} was not downloaded. {instead}")
    parts = [path.with_name(".".join(filter(None, (name, remote.name, "part")))) for remote in one.remotes]
    origins = []
    for remote, part in zip(one.remotes, parts, strict=True):
        try:
            origins.append(download(remote.mirrors, part, remote.checksum, progress))
        except Refused as error:
            raise DataError(f"Could not get {name!r}: {error}. Try again, or get it elsewhere. {instead}") from error
        except OSError as error:
            raise DataError(f"Could not write {part}: {error.strerror or error}.") from error
    try:
        arrays = _read(one, parts)
        missing = one.missing_rows(arrays)
        if missing:
            raise DataError(f"{missing}.")
    except DataError as error:
        _delete(parts)
        raise DataError(f"What was downloaded for {name!r} is not the data set: {error} {instead}") from error
    urls, checksums = zip(*origins, strict=True)
    _keep(one, arrays, ", ".join(urls), ", ".join(checksums), sum(part.stat().st_size for part in parts))
    _delete(parts)
    return path


def import_files(name: str, files: Sequence[str | Path]) -> tuple[Path, str]:
    """Verify and keep a data set from files at hand.

    Returns where it is kept, and how it differs from the published set ("" if it does not, as far as one can know).
    """
    one = find(name)
    if one.shipped:
        raise DataError(f"The data set {name!r} ships with NNArena; there is nothing to import.")
    paths = [Path(file) for file in files]
    if not paths:
        raise DataError(f"Name the file to import: `nnarena data import {name} FILE` ({one.accepts}).")
    for path in paths:
        if not path.exists():
            raise DataError(f"There is no file {str(path)!r}.")
    try:
        arrays = _read(one, paths)
    except DataError as error:
        raise DataError(f"{error} For {name!r} I can read {one.accepts}.") from error
    single = paths[0] if len(paths) == 1 and paths[0].is_file() else None
    sha256, size = (file_sha256(single), single.stat().st_size) if single else ("", None)
    path = _keep(one, arrays, ", ".join(one.name for one in paths), sha256, size)
    return path, one.difference(arrays)


def _read(one: DataSet, paths: Sequence[Path]) -> Arrays:
    """The arrays of files in any accepted format, checked."""
    arrays = one.read(paths)
    with reading(", ".join(map(str, paths)), f"the data set {one.name!r}"):
        one.check(arrays)
    return arrays


def _keep(one: DataSet, arrays: Arrays, origin: str, sha256: str, size: int | None) -> Path:
    record = {
        "name": one.name,
        "origin": origin,
        "sha256": sha256,
        "bytes": size,
        "content": digest(arrays),
        "published": not one.difference(arrays) if one.content else None,
        "nnarena": nnarena.__version__,
    }
    return store(one.name, arrays, record)


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink()


def _is_good(name: str) -> bool:
    try:
        load(name)
    except DataError:
        return False
    return True
