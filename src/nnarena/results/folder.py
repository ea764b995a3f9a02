"""One trial's folder: what it was asked, how it goes, what came out.

trial.json      request, status, seeds, versions, device
curve.jsonl     one line an epoch, appended live
exhibit.json    what a report may draw of the trained model, where its task has something to show
result.json     written last, by an atomic rename: its presence means done
look.json       what `nnarena look` saw, if it was asked, and look.html, the same as a page
attention.json  what a model with attention looked at on a few test samples, where there is something to show
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnarena.core.errors import StoreError
from nnarena.core.files import finite, locked, read_json, write_json, write_text
from nnarena.core.trial import Trial

TRIAL, CURVE, RESULT = "trial.json", "curve.jsonl", "result.json"
START = "start.safetensors"  # the weights that a trial starts with, where they are those of another one
MODEL, CHECKPOINT, TRACEBACK = "model.safetensors", "checkpoint.safetensors", "traceback.txt"
LOOK, LOOK_PAGE = "look.json", "look.html"
ATTENTION, EXHIBIT = "attention.json", "exhibit.json"


def new_result(trial: Trial, *, exclusive: bool) -> dict[str, Any]:
    """The fields of every `result.json`, before anything is known."""
    return {
        "task": trial.task.label,
        "model": trial.model.label,
        "optimizer": trial.optimizer.label,
        "options": trial.as_dict()["options"] | {"protocol": trial.protocol.as_dict()},
        "seed": trial.seed,
        "status": "done",
        "collapsed": None,
        "parameters": None,
        "epochs": 0,
        "best_epoch": 0,
        "seconds_total": 0.0,
        "seconds_per_epoch": None,
        "exclusive_timing": exclusive,
        "peak_memory": None,
        "training": {},
        "validation": {},
        "test": {},
        "baselines": {},
        "device": None,
        "error": None,
    }


class TrialFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_done(self) -> bool:
        return (self.path / RESULT).exists()

    def result(self) -> dict[str, Any]:
        return read_json(self.path / RESULT)

    def begin(self, record: dict[str, Any]) -> None:
        write_json(self.path / TRIAL, record | {"status": "running"})

    def finish(self, record: dict[str, Any], result: dict[str, Any]) -> None:
        """The result comes last: from here on the trial is done. Then the checkpoint may go."""
        write_json(self.path / TRIAL, record | {"status": result["status"]})
        write_json(self.path / RESULT, result)
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def forget(self) -> None:
        """Make the trial one that has not been done, so that it runs from its beginning."""
        for name in (RESULT, CHECKPOINT, MODEL, CURVE, TRACEBACK, LOOK, LOOK_PAGE, ATTENTION, EXHIBIT):
            (self.path / name).unlink(missing_ok=True)

    def curve(self) -> list[dict[str, Any]]:
        """One entry an epoch. A last line that a crash cut short does not count."""
        try:
            text = (self.path / CURVE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]

    def append(self, epoch: dict[str, Any]) -> None:
        with (self.path / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(epoch), allow_nan=False) + "\n")

    def keep_epochs(self, count: int) -> list[dict[str, Any]]:
        """Drop the epochs that are newer than the checkpoint that training continues from."""
        kept = self.curve()[:count]
        write_text(self.path / CURVE, "".join(json.dumps(line) + "\n" for line in kept))
        return kept

    @contextmanager
    def locked(self, patience: float = 30.0, busy: str = "") -> Iterator[None]:
        """One process at a time; StoreError says `busy`. A lock dies with its process: a crash leaves none behind."""
        with locked(self.path, patience, busy or f"Another process is working on {self.path}."):
            yield

    def is_locked(self) -> bool:
        """Whether a living process works on this trial now."""
        if not self.path.is_dir():
            return False
        try:
            with self.locked(patience=0):
                return False
        except StoreError:
            return True
