"""The folder that holds the data sets: one NPZ file each, and beside it a note on where it came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from nnarena.core.errors import DataError
from nnarena.core.files import replacing, write_json
from nnarena.data.dataset import Arrays


def data_folder() -> Path:
    """`NNARENA_DATA`, or this user's data folder."""
    given = os.environ.get("NNARENA_DATA")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return platformdirs.user_data_path("nnarena", appauthor=False) / "data"


def stored_file(name: str) -> Path:
    return data_folder() / f"{name}.npz"


def store(name: str, arrays: Arrays, record: dict[str, Any]) -> Path:
    """Keep a data set: the file is whole or not there, and what was there stays until the new one is whole."""
    path = stored_file(name)
    try:
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, **arrays)
        write_json(path.with_suffix(".json"), record)
    except OSError as error:
        raise DataError(
            f"Could not write {path}: {error.strerror or error}. NNARENA_DATA names another folder."
        ) from error
    return path
