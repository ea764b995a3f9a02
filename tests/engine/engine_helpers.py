"""Small trials and what is compared of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nnarena.core.components import catalogue
from nnarena.core.files import finite
from nnarena.core.options import parse_choice
from nnarena.core.protocol import Protocol
from nnarena.core.trial import Trial, make_trial
from nnarena.engine.tensors import load
from nnarena.engine.trial import run_population, run_trial
from nnarena.results.folder import CURVE, MODEL, TrialFolder

OWN = str(Path(__file__).with_name("own_nets.py"))
CPU = torch.device("cpu")
STEPS = 16  # an epoch's steps of the small trials
SMALL = {"samples": 320, "batch_size": 16, "epochs": 4, "lr": 0.01}
TOLERANCE = 1e-4  # float32 in another order, over some epochs
TIMES = ("seconds_total", "seconds_per_epoch", "peak_memory")


KEPT = ("population", "seconds")  # of a curve's line: how it was computed, not what came out


class Stop(KeyboardInterrupt):
    """Somebody pressed Ctrl-C."""


def make(model: str = "lstm[hidden_size=6]", task: str = "add[length=4]", optimizer="adam", seed=0, **more) -> Trial:
    """A trial of 256 training samples; a name that begins with `:` is of `own_nets.py`."""
    names = [OWN + name if name.startswith(":") else name for name in (task, model, optimizer)]
    choices = [parse_choice(name)[0] for name in names]
    return make_trial("tests", *choices, Protocol.of(SMALL | more), seed)


def run(
    trial: Trial, path: Path, stop_after: int | None = None, logs: list[str] | None = None, device: torch.device = CPU
) -> dict[str, Any]:
    """Run a trial, or stop it like Ctrl-C after an epoch."""

    def on_epoch(line: dict[str, Any]) -> None:
        if line["epoch"] == stop_after:
            raise Stop

    told = [] if logs is None else logs
    return run_trial(trial, TrialFolder(path), device, on_epoch=on_epoch, log=told.append)


def run_together(
    trials: list[Trial],
    path: Path,
    stop_after: int | None = None,
    logs: list[str] | None = None,
    device: torch.device = CPU,
) -> list:
    """Run trials as a population, each in the folder of its place; or stop when the first one reaches an epoch."""

    def on_epoch(trial: Trial, line: dict[str, Any]) -> None:
        if line["epoch"] == stop_after:
            raise Stop

    told = [] if logs is None else logs
    folders = [(trial, TrialFolder(path / str(place))) for place, trial in enumerate(trials)]
    return run_population(folders, device, on_epoch=on_epoch, log=told.append)


def assert_same(one: Path, other: Path, tolerance: float = TOLERANCE) -> None:
    """Two runs of a trial came out the same, to rounding."""
    results = [json.loads((path / "result.json").read_text()) for path in (one, other)]
    for key in ("status", "epochs", "best_epoch", "parameters", "seed", "baselines"):
        assert results[0][key] == results[1][key], key
    for part in ("test", "validation"):
        assert results[0][part] == pytest.approx(results[1][part], rel=tolerance)
    lines, others = curve(one), curve(other)
    assert len(lines) == len(others)
    for line, twin in zip(lines, others, strict=True):
        assert line["epoch"] == twin["epoch"]
        assert line["lr"] == pytest.approx(twin["lr"])
        for ours, theirs in zip(numbers(line), numbers(twin), strict=True):
            assert ours == pytest.approx(theirs, rel=tolerance, nan_ok=True)
    if not (one / MODEL).exists():
        assert not (other / MODEL).exists()
        return
    weights = [load(path / MODEL)[0] for path in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=tolerance, atol=tolerance, msg=name)


def numbers(line: dict[str, Any]) -> list[float]:
    return [float("nan") if value is None else value for value in (line["loss"], *line["validation"].values())]


def curve(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / CURVE).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in KEPT} for line in lines]


def bits(path: Path, result: dict[str, Any] | None = None) -> dict[str, Any]:
    """All that must be the same whenever the same trial runs."""
    result = json.loads((path / "result.json").read_text() if result is None else json.dumps(finite(result)))
    kept = {key: value for key, value in result.items() if key not in TIMES}
    return {"curve": curve(path), "weights": (path / MODEL).read_bytes(), "result": kept}


# Every built-in competitor on sequences but the one that does nothing else than hold a bit.
COMPETITORS = [
    name
    for name, component in sorted(catalogue("model").items())
    if name != "memory_cell" and component.reads == "sequences"
]
