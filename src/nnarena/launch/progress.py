"""Progress of a running study: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from nnarena.core.count import counted
from nnarena.core.trial import Trial
from nnarena.launch.watch import Watcher

HEARTBEAT = 10.0  # seconds between plain lines while nothing finishes
ROWS = 12  # running trials that the live display shows; more wait out of sight


def progress(quiet: bool = False) -> Watcher:
    """The watcher that suits where the output goes."""
    if quiet:
        return Watcher()
    if sys.stderr.isatty():
        try:
            return LiveProgress()
        except ImportError:  # rich is not there: torch and numpy suffice to run
            pass
    return PlainProgress()


class Pace:
    """How far a study is, in trials, and how long it will still take. A trial of n epochs counts by its epochs."""

    def __init__(self, pending: int, done: int) -> None:
        self.began = time.monotonic()
        self.pending, self.done, self.finished = pending, done, 0
        self.parts: dict[str, float] = {}

    def epoch(self, trial: Trial, line: dict[str, Any]) -> None:
        self.parts[trial.id] = line["epoch"] / trial.protocol.epochs

    def finish(self, trial: Trial) -> None:
        self.parts.pop(trial.id, None)
        self.finished += 1

    @property
    def completed(self) -> float:
        return self.finished + sum(self.parts.values())

    @property
    def seconds_left(self) -> float | None:
        elapsed = time.monotonic() - self.began
        return (
            elapsed / self.completed * (self.pending - self.completed) if self.completed > 0 and elapsed > 1 else None
        )

    def __str__(self) -> str:
        """`7/18 trials, 12.5 a minute, 52 s left`"""
        text = f"{self.done + self.finished}/{counted(self.done + self.pending, 'trial')}"
        minutes = (time.monotonic() - self.began) / 60
        if self.completed > 0 and minutes > 1 / 60:
            text += f", {self.completed / minutes:.1f} a minute"
        left = self.seconds_left
        return text if left is None or self.finished == self.pending else f"{text}, {duration(left)} left"


class PlainProgress(Watcher):
    """One line a finished trial, and one every ten seconds while none finishes."""

    def begin(self, pending: list[Trial], done: int, jobs: int) -> None:
        self.pace = Pace(len(pending), done)
        self.spoke = time.monotonic()
        self._say(opening(pending, done, jobs))

    def epoch(self, trial: Trial, line: dict[str, Any]) -> None:
        self.pace.epoch(trial, line)
        if time.monotonic() - self.spoke > HEARTBEAT:
            self._say(f"{name(trial)}: {stage(trial, line)}  ({self.pace})")

    def finish(self, trial: Trial, result: dict[str, Any]) -> None:
        self.pace.finish(trial)
        self._say(f"{closing(trial, result)}  ({self.pace})")

    def log(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self.spoke = time.monotonic()
        print(text, file=sys.stderr, flush=True)


class LiveProgress(Watcher):
    """A bar for the study and one for each running trial."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.rows: dict[str, Any] = {}

    def begin(self, pending: list[Trial], done: int, jobs: int) -> None:
        self.pace = Pace(len(pending), done)
        self.bars.console.print(opening(pending, done, jobs), highlight=False)
        if pending:
            self.bars.start()
        self.total = self.bars.add_task("[bold]all", total=done + len(pending), completed=done, note="")

    def start(self, trial: Trial) -> None:
        if trial.id not in self.rows:
            visible = len(self.rows) < ROWS
            self.rows[trial.id] = self.bars.add_task(
                _escape(name(trial)), total=trial.protocol.epochs, note="starting", visible=visible
            )

    def epoch(self, trial: Trial, line: dict[str, Any]) -> None:
        self.pace.epoch(trial, line)
        self.bars.update(self.rows[trial.id], completed=line["epoch"], note=stage(trial, line))
        self._update_total()

    def finish(self, trial: Trial, result: dict[str, Any]) -> None:
        self.pace.finish(trial)
        row = self.rows.pop(trial.id, None)
        if row is not None:
            self.bars.remove_task(row)
            for shown in list(self.rows.values())[:ROWS]:
                self.bars.update(shown, visible=True)
        self.bars.console.print(closing(trial, result), highlight=False, markup=False)
        self._update_total()

    def log(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        self.bars.stop()

    def _update_total(self) -> None:
        self.bars.update(self.total, completed=self.pace.done + self.pace.completed, note=str(self.pace))


def opening(pending: list[Trial], done: int, jobs: int) -> str:
    if not pending:
        return "The trial is done." if done == 1 else f"All {done} trials are done."
    already = f", {done} done already" if done else ""
    return f"{counted(len(pending), 'trial')} to run{already}; {jobs} at a time."


def closing(trial: Trial, result: dict[str, Any]) -> str:
    if result["status"] == "failed" or not result["test"]:
        return f"{name(trial)}: {result['status']}: {result['error'] or 'no epoch had a finite loss'}"
    status = "" if result["status"] == "done" else f"{result['status']}, "
    effort = f"{counted(result['epochs'], 'epoch')}, {duration(result['seconds_total'])}"
    status += "collapsed, " if result.get("collapsed") else ""
    return f"{name(trial)}: {status}test {scores(result['test'])}, {effort}"


def stage(trial: Trial, line: dict[str, Any]) -> str:
    return f"epoch {line['epoch']}/{trial.protocol.epochs}, {scores(line['validation'])}"


def name(trial: Trial) -> str:
    optimizer = "" if trial.optimizer.label == "adam" else f" {trial.optimizer.label}"
    return f"{trial.task.label} {trial.model.label}{optimizer} seed {trial.seed}"


def scores(metrics: dict[str, float | None]) -> str:
    return ", ".join(
        f"{metric} {'nan' if value is None else format(value, '.4g')}" for metric, value in metrics.items()
    )


def duration(seconds: float) -> str:
    """`8.2 s`, `4 min`, `2.5 h`: as exact as it is useful."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
