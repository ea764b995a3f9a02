"""What a running study tells whoever watches it."""

from __future__ import annotations

from typing import Any

from nnarena.core.trial import Trial


class Watcher:
    """Every method may be overridden; this one keeps silent."""

    def begin(self, pending: list[Trial], done: int, jobs: int) -> None:
        """The study starts: what is left to do, how many trials are done already, how many run at once."""

    def start(self, trial: Trial) -> None:
        """A trial starts, or continues; others may be running already."""

    def epoch(self, trial: Trial, line: dict[str, Any]) -> None:
        """An epoch is over; `line` is what `curve.jsonl` holds."""

    def finish(self, trial: Trial, result: dict[str, Any]) -> None:
        """A trial has its result."""

    def log(self, text: str) -> None:
        """Something worth a line."""

    def end(self) -> None:
        """All trials are over, or the study was stopped."""
