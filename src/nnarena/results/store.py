"""A study's folder.

    DIR/study.toml                                 the request, frozen
    DIR/published.csv                              the figures it is compared with, if there are any
    DIR/trials/<task>/<model>/<optimizer>/<id>/    one folder a trial
    DIR/results.parquet                            derived, rebuilt from the folders at will
    DIR/ensembles.json                             what `nnarena ensemble` found, if it was asked

Nothing is lost by a crash: a trial is done when its `result.json` is there, and all else can be made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnarena.core.count import counted
from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.files import write_text
from nnarena.core.study import STUDIES, Study, dump_toml, load_toml
from nnarena.core.trial import Trial
from nnarena.results.folder import RESULT, TrialFolder

if TYPE_CHECKING:
    import polars as pl

STUDY, PUBLISHED, TRIALS, TABLE = "study.toml", "published.csv", "trials", "results.parquet"
NAMED = 6  # trials that an error names
ENSEMBLES = "ensembles.json"


class Store:
    """Reads and writes one study's folder; `Store.create` for running, `Store.open` for looking."""

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder = folder
        self.study = study

    @classmethod
    def open(cls, folder: Path) -> Store:
        if not (folder / STUDY).is_file():
            raise StoreError(f"{folder} holds no study: `nnarena run … --out {folder}` makes one.")
        try:
            return cls(folder, load_toml((folder / STUDY).read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, ArenaError) as error:
            raise StoreError(f"{folder / STUDY} is damaged: {error}.") from error

    @classmethod
    def create(cls, folder: Path, study: Study) -> Store:
        """A new store, or the one that is there if it holds this study or a part of it.

        Parts of one named study meet in one folder: `run poster -m gru` and `run poster -m lstm` may share it.
        """
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{folder} is a file; --out wants a folder.")
        if (folder / STUDY).is_file():
            old = cls.open(folder).study
            difference = _difference(old, study)
            if difference:
                raise StoreError(f"{folder} belongs to another study ({difference}); choose another --out.")
            study = _union(old, study)
        elif folder.is_dir() and any(folder.iterdir()):
            raise StoreError(f"{folder} is not empty and holds no study; choose another --out.")
        if study.published:
            # Beside the study file: the package's own, or a person's.
            beside = Path(study.source).parent if study.source.endswith(".toml") else STUDIES
            try:
                write_text(folder / PUBLISHED, (beside / study.published).read_text(encoding="utf-8"))
            except FileNotFoundError as error:
                raise StoreError(f"The published figures {beside / study.published} are not there.") from error
        write_text(folder / STUDY, dump_toml(study))
        return cls(folder, study)

    def trial_folder(self, trial: Trial) -> TrialFolder:
        return TrialFolder(self.folder / TRIALS / trial.path)

    def pending(self, trials: Iterable[Trial]) -> list[Trial]:
        return [trial for trial in trials if not self.trial_folder(trial).is_done]

    def folders(self) -> Iterator[TrialFolder]:
        """Every trial's folder that exists, in a fixed order."""
        for path in _subfolders(self.folder / TRIALS, depth=4):
            yield TrialFolder(path)

    def find(self, name: str) -> TrialFolder:
        """A trial by its id, the beginning of it, or its path."""
        name = name.rstrip("/").rsplit("/", 1)[-1]
        folders = list(self.folders())
        matches = [folder for folder in folders if name and folder.path.name.startswith(name)]
        if not matches:
            known = ["/".join(folder.path.parts[-4:]) for folder in folders]
            more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
            there = f"; there are {', '.join(known[:NAMED])}{more}." if known else ", and no other yet."
            raise StoreError(f"{self.folder} has no trial {name!r}{there}")
        if len(matches) > 1:
            raise StoreError(f"{len(matches)} trials of {self.folder} begin with {name!r}; write more of the id.")
        return matches[0]

    def table(self) -> pl.DataFrame:
        """One row a finished trial, in step with the folders: see `results.table`."""
        from nnarena.results.table import refresh

        return refresh(self.folder / TABLE, self.folder / TRIALS, RESULT)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Held while a study runs, so that it is not run twice at the same time."""
        busy = f"Another process runs the study in {self.folder}: `nnarena status {self.folder}` shows how far it is."
        with TrialFolder(self.folder).locked(patience=5, busy=busy):
            yield


def _difference(old: Study, new: Study) -> str:
    """Why `new` is not `old` or a larger version of it; empty if it is."""
    if old.name != new.name:
        return f"{old.name!r}, not {new.name!r}"
    before, after = old.protocol.as_dict(), new.protocol.as_dict()
    for key, value in before.items():
        if after[key] != value:
            return f"its {key} is {value}, not {after[key]}"
    if old.source and old.source == new.source:
        return ""
    lost = _cells(old) - _cells(new)
    if lost:
        return "it has " + ", ".join(" on ".join((model, task)) for task, model, _ in sorted(lost)[:3])
    return f"it has {counted(old.seeds, 'seed')}, not {new.seeds}" if old.seeds > new.seeds else ""


def _union(old: Study, new: Study) -> Study:
    """All that either asks for."""
    grids = (*old.grids, *new.grids)
    if _cells(old) <= _cells(new):
        grids = new.grids
    elif _cells(new) <= _cells(old):
        grids = old.grids
    return replace(new, grids=grids, seeds=max(old.seeds, new.seeds))


def _cells(study: Study) -> set[tuple[str, str, str]]:
    return {
        (str(task), str(model), str(optimizer))
        for grid in study.grids
        for task in grid.tasks
        for model in grid.models
        for optimizer in grid.optimizers
    }


def _subfolders(path: Path, depth: int) -> Iterator[Path]:
    if depth == 0:
        yield path
        return
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return
    for name in names:
        yield from _subfolders(path / name, depth - 1)
