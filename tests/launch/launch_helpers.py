"""Small studies, what is compared of them, and the workers of a process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnarena.core.options import parse_choices
from nnarena.core.protocol import Protocol
from nnarena.core.study import Grid, Study
from nnarena.core.trial import Trial
from nnarena.launch.watch import Watcher
from nnarena.results.folder import CURVE, MODEL, RESULT
from nnarena.results.store import Store

OWN = str(Path(__file__).parents[1] / "engine" / "own_nets.py")
TIMES = ("seconds_total", "seconds_per_epoch", "peak_memory", "exclusive_timing")
LSTM, GRU, SLOW = "lstm[hidden_size=6]", "gru[hidden_size=6]", ":Sleeps[seconds=0.03]"


def small(*models: str, seeds: int = 1, **settings: Any) -> Study:
    """A study of 16 steps an epoch; a name that begins with `:` is of `own_nets.py`."""
    names = [OWN + name if name.startswith(":") else name for name in models]
    grid = Grid(*(tuple(parse_choices(part)) for part in (["add[length=4]"], names, ["adam"])))
    protocol = Protocol.of({"samples": 320, "batch_size": 16, "epochs": 4, "lr": 0.01} | settings)
    return Study("tests", (grid,), seeds=seeds, protocol=protocol)


def bits(folder: Path, study: Study) -> dict[str, Any]:
    """All that must be the same however the study was run, by trial."""
    store, found = Store.open(folder), {}
    for trial in study.trials():
        path = store.trial_folder(trial).path
        result = json.loads((path / RESULT).read_text())
        lines = [json.loads(line) for line in (path / CURVE).read_text().splitlines()]
        found[trial.path] = (
            {key: value for key, value in result.items() if key not in TIMES},
            [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
            (path / MODEL).read_bytes() if (path / MODEL).exists() else None,
        )
    return found


class Log(Watcher):
    """Keeps everything it is told; `on_epoch` may act."""

    def __init__(self, on_epoch: Callable[[Trial, dict[str, Any]], None] = lambda trial, line: None) -> None:
        self.lines: list[str] = []
        self.started: list[str] = []
        self.finished: dict[str, dict[str, Any]] = {}
        self.pending, self.done, self.jobs, self.ended = -1, -1, -1, False
        self.on_epoch = on_epoch

    def begin(self, pending, done, jobs):
        self.pending, self.done, self.jobs = len(pending), done, jobs

    def start(self, trial):
        self.started.append(trial.model.name)

    def epoch(self, trial, line):
        self.on_epoch(trial, line)

    def finish(self, trial, result):
        self.finished[trial.model.name] = result

    def log(self, text):
        self.lines.append(text)

    def end(self):
        self.ended = True


def workers_of(parent: int) -> list[int]:
    """The worker processes that `parent` started and that live."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(status[1]) == parent and status[0] != "Z" and b"nnarena.launch.worker" in command:
            found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value
