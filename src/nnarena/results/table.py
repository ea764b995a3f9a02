"""`results.parquet`: all finished trials as one table, kept in step with the folders.

One row a trial. Columns: `id, path, task, model, optimizer, options (JSON), seed, status, collapsed, parameters,
epochs, best_epoch, seconds_total, seconds_per_epoch, exclusive_timing, peak_memory, device, error`, then one column a
metric: `validation.<metric>`, `test.<metric>`, `baseline.<name>.<metric>`, and `training.<metric>` where a model learns
from what it does, or its gradient was watched. Any tool that reads Parquet can query it.

Refreshing looks at every folder but reads only results that are new or changed, so a store of many thousand trials
opens in about a second. The table is never the truth: delete it and it comes back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from nnarena.core.files import read_json, replacing

# The columns every table has, also an empty one.
COLUMNS: dict[str, pl.DataType] = {
    "id": pl.String(),
    "path": pl.String(),
    "task": pl.String(),
    "model": pl.String(),
    "optimizer": pl.String(),
    "options": pl.String(),
    "seed": pl.Int64(),
    "status": pl.String(),
    "collapsed": pl.Boolean(),
    "parameters": pl.Int64(),
    "epochs": pl.Int64(),
    "best_epoch": pl.Int64(),
    "seconds_total": pl.Float64(),
    "seconds_per_epoch": pl.Float64(),
    "exclusive_timing": pl.Boolean(),
    "peak_memory": pl.Int64(),
    "device": pl.String(),
    "error": pl.String(),
    "changed": pl.Int64(),
}


def refresh(table: Path, trials: Path, result: str) -> pl.DataFrame:
    """The table as the folders are now; the file is rewritten if anything changed, and if it may be written."""
    old = _read(table)
    seen = dict(_results(trials, result))
    known = dict(zip(old["path"], old["changed"], strict=True))
    if known == seen:
        return old.drop("changed")
    kept = old.filter(pl.col("path").is_in([path for path in seen if known.get(path) == seen[path]]))
    fresh = [
        flatten(path, read_json(trials / path / result)) | {"changed": changed}
        for path, changed in seen.items()
        if known.get(path) != changed
    ]
    new = pl.concat([kept, _frame(fresh)], how="diagonal").sort("task", "model", "optimizer", "seed", "path")
    with suppress(OSError), replacing(table) as file:  # where it cannot be written, the one in memory serves
        new.write_parquet(file)
    return new.drop("changed")


def flatten(path: str, result: dict[str, Any]) -> dict[str, Any]:
    """`result.json` as one row: nested metrics become columns."""
    row = {name: result.get(name) for name in COLUMNS} | {"id": path.rsplit("/", 1)[-1], "path": path}
    row["options"] = json.dumps(result.get("options", {}))
    for part in ("training", "validation", "test"):
        row |= {f"{part}.{metric}": value for metric, value in (result.get(part) or {}).items()}
    for name, scores in (result.get("baselines") or {}).items():
        row |= {f"baseline.{name}.{metric}": value for metric, value in scores.items()}
    return row


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    metrics = sorted({name for row in rows for name in row} - COLUMNS.keys())
    return pl.DataFrame(rows, schema=COLUMNS | {name: pl.Float64() for name in metrics}, orient="row")


def _read(table: Path) -> pl.DataFrame:
    try:
        old = pl.read_parquet(table)
    except (OSError, pl.exceptions.PolarsError):  # not there, or damaged: made anew
        return _frame([])
    return old if COLUMNS.keys() <= set(old.columns) else _frame([])


def _results(trials: Path, name: str) -> Iterator[tuple[str, int]]:
    """Path and time of change of every result, two system calls a trial."""

    def walk(path: str, inside: str, depth: int) -> Iterator[tuple[str, int]]:
        try:
            with os.scandir(path) as entries:
                folders = sorted(entry.name for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for folder in folders:
            place = f"{inside}/{folder}" if inside else folder
            if depth > 1:
                yield from walk(f"{path}/{folder}", place, depth - 1)
                continue
            try:
                yield place, os.stat(f"{path}/{folder}/{name}").st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                continue

    yield from walk(str(trials), "", 4)
