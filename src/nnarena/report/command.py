"""The commands that make a figure again: every row of a report carries the one that made it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from nnarena.core.components import LENT
from nnarena.core.errors import ArenaError
from nnarena.core.options import Value, render
from nnarena.core.protocol import PUBLISHED
from nnarena.core.study import Study, find_study


def source_study(study: Study) -> Study | None:
    """The study file that this study came from, as it is now; None if it has none or it has gone."""
    try:
        return find_study(study.source) if study.source else None
    except (ArenaError, OSError):
        return None


def changed_settings(study: Study, source: Study | None) -> dict[str, Value]:
    """The protocol settings that must be given besides the study's source to get this study's protocol."""
    base = (source.protocol if source else PUBLISHED).as_dict()
    return {name: value for name, value in study.protocol.as_dict().items() if value != base[name]}


def run_command(study: Study, settings: Mapping[str, Value], task: str, model: str, optimizer: str) -> str:
    """`nnarena run …` for one row, all its seeds. Names are full references: `lstm[hidden_size=64]`, `my.py:Cell`.

    An object of a notebook or a script has no such name; then a comment says so.
    """
    for ref in (task, model, optimizer):
        if ref.startswith(LENT):
            return f"# {ref[len(LENT) + 1 :]} was handed over in Python: put it in a file and name it file.py:Name"
    words = ["nnarena", "run", *([study.source] if study.source else [])]
    words += ["-t", task, "-m", model, "-o", optimizer, "--seeds", str(study.seeds)]
    for name, value in settings.items():
        words += ["--set", f"{name}={render(value)}"]
    return shlex.join(words)


def shown_folder(folder: Path) -> str:
    """The folder as one would type it from here. A report may be shared, so no path of this machine is in it."""
    if not folder.is_absolute():
        return folder.as_posix()
    here = os.path.relpath(folder)
    return folder.name if here.startswith("..") else Path(here).as_posix()
