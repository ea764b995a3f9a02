"""A finished trial once more, apart from its store, and what came out differently."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from nnarena.core.errors import StoreError
from nnarena.core.files import read_json
from nnarena.core.trial import Trial, trial_from_dict
from nnarena.engine.device import check_precision, device_name, pick_device, versions
from nnarena.engine.transfer import copy_file
from nnarena.engine.trial import run_trial
from nnarena.launch.watch import Watcher
from nnarena.results.folder import MODEL, START, TRIAL, TrialFolder
from nnarena.results.store import Store


def rerun_trial(store: Store, folder: TrialFolder, device: str, watcher: Watcher) -> dict[str, Any]:
    """Run the trial in a folder of its own and compare it with what the store holds."""
    if not folder.is_done:
        raise StoreError(f"The trial {folder.path.name} is not finished, so there is nothing to compare.")
    record = read_json(folder.path / TRIAL)
    trial = trial_from_dict(record)
    target = pick_device(device)
    check_precision(trial.protocol.precision, target)
    with tempfile.TemporaryDirectory(prefix="nnarena-rerun-") as temporary:
        again = TrialFolder(Path(temporary) / trial.id)
        if (folder.path / START).is_file():
            copy_file(folder.path / START, again.path / START)
        watcher.begin([trial], 0, 1)
        watcher.start(trial)
        result = run_trial(trial, again, target, on_epoch=lambda line: watcher.epoch(trial, line), log=watcher.log)
        watcher.finish(trial, result)
        watcher.end()
        differences = [*_surroundings(record, trial, device_name(target)), *_company(folder)]
        differences += _differences(folder, again)
    outcome = [line for line in differences if not line.startswith("made with")]
    return {"trial": trial.path, "same": not outcome, "differences": differences if outcome else []}


def _differences(first: TrialFolder, second: TrialFolder) -> list[str]:
    before, after = first.result(), second.result()
    found = []
    for key in ("status", "parameters", "epochs", "best_epoch", "validation", "test"):
        if before[key] != after[key]:
            found.append(f"{key}: {before[key]} then, {after[key]} now")
    for old, new in zip(first.curve(), second.curve(), strict=False):
        if _numbers(old) != _numbers(new):
            found.append(f"curve: epoch {old['epoch']} differs first")
            break
    weights = [folder.path / MODEL for folder in (first, second)]
    if all(path.exists() for path in weights) and weights[0].read_bytes() != weights[1].read_bytes():
        found.append("weights: not the same bits")
    return found


def _numbers(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("seconds", "population")}


def _company(folder: TrialFolder) -> list[str]:
    """A trial that was trained as one with others differs by rounding from itself alone."""
    sizes = [line["population"] for line in folder.curve() if "population" in line]
    return [f"made with {max(sizes)} trials as one, now alone"] if sizes else []


def _surroundings(record: dict[str, Any], trial: Trial, device: str) -> list[str]:
    """What may explain a difference."""
    then = {**record["versions"], "device": record["device"], "source": record.get("fingerprints")}
    now = {**versions(), "device": device, "source": dict(trial.fingerprints)}
    return [f"made with {key} {then[key]}, now {now[key]}" for key in now if then.get(key) != now[key]]
