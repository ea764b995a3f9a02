"""Small trials and what is compared of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from nnarena.core.components import catalogue
from nnarena.core.files import finite
from nnarena.core.options import parse_choice
from nnarena.core.protocol import Protocol
from nnarena.core.trial import Trial, make_trial
from nnarena.engine.trial import run_trial
from nnarena.results.folder import CURVE, MODEL, TrialFolder

OWN = str(Path(__file__).with_name("own_nets.py"))
CPU = torch.device("cpu")
STEPS = 16  # an epoch's steps of the small trials
SMALL = {"samples": 320, "batch_size": 16, "epochs": 4, "lr": 0.01}
TIMES = ("seconds_total", "seconds_per_epoch", "peak_memory")


class Stop(KeyboardInterrupt):
    """Somebody pressed Ctrl-C."""


def make(model: str = "lstm[hidden_size=6]", task: str = "add[length=4]", optimizer="adam", seed=0, **more) -> Trial:
    """A trial of 256 training samples; a name that begins with `:` is of `own_nets.py`."""
    names = [OWN + name if name.startswith(":") else name for name in (task, model, optimizer)]
    choices = [parse_choice(name)[0] for name in names]
    return make_trial("tests", *choices, Protocol.of(SMALL | more), seed)


def run(trial: Trial, path: Path, stop_after: int | None = None, logs: list[str] | None = None) -> dict[str, Any]:
    """Run a trial, or stop it like Ctrl-C after an epoch."""

    def on_epoch(line: dict[str, Any]) -> None:
        if line["epoch"] == stop_after:
            raise Stop

    told = [] if logs is None else logs
    return run_trial(trial, TrialFolder(path), CPU, on_epoch=on_epoch, log=told.append)


def curve(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / CURVE).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def bits(path: Path, result: dict[str, Any] | None = None) -> dict[str, Any]:
    """All that must be the same whenever the same trial runs."""
    result = json.loads((path / "result.json").read_text() if result is None else json.dumps(finite(result)))
    kept = {key: value for key, value in result.items() if key not in TIMES}
    return {"curve": curve(path), "weights": (path / MODEL).read_bytes(), "result": kept}


# Every built-in competitor but the one that does nothing else than hold a bit.
COMPETITORS = [name for name in sorted(catalogue("model")) if name != "memory_cell"]
