"""What kernels are made with: a folder for their texts, and a C++ compiler."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from pathlib import Path


@functools.cache
def cache_folder() -> Path:
    """Where the texts of kernels lie: `$NNARENA_CACHE`, or the user's cache, or a folder of this process."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("NNARENA_CACHE") or Path(home) / "nnarena") / "kernels"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="nnarena-"))


@functools.cache
def compiler() -> str | None:
    """The C++ compiler that is here."""
    found = (shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)
    return next((path for path in found if path), None)
