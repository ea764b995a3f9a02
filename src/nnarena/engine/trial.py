"""One trial from its request to its result.

Honest by construction: the splits, the order of batches and the start values come from seeds that all rivals with
the same seed share; validation alone selects the model; the test set is read once, on the best checkpoint; whatever
goes wrong becomes a row with its reason.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.files import disk_is_full, write_text
from nnarena.core.spec import Samples
from nnarena.core.trial import Trial
from nnarena.engine.checkpoint import load_checkpoint, save_checkpoint
from nnarena.engine.device import computing_with, device_name, peak_memory, reset_peak_memory, synchronise, versions
from nnarena.engine.prepare import Ready, prepare
from nnarena.engine.schedule import Schedule
from nnarena.engine.step import OutOfTime, State, evaluate, train_epoch
from nnarena.engine.tensors import save
from nnarena.results.folder import CHECKPOINT, MODEL, TRACEBACK, TrialFolder, new_result

OnEpoch = Callable[[dict[str, Any]], None]
Log = Callable[[str], None]


class Outside(BaseException):
    """An error of whoever watches, not of the trial: it ends the run, and the trial can go on another time."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _apart(call: Callable[[Any], None]) -> Callable[[Any], None]:
    """`call`, whose errors are not the trial's."""

    def told(value: Any) -> None:
        try:
            call(value)
        except Exception as error:
            raise Outside(error) from error

    return told


def run_trial(
    trial: Trial,
    folder: TrialFolder,
    device: torch.device,
    *,
    exclusive: bool = True,
    on_epoch: OnEpoch = lambda epoch: None,
    log: Log = print,
) -> dict[str, Any]:
    """Train and test, from the beginning or from where a stopped run left off. Returns what `result.json` holds."""
    record = trial.as_dict() | {
        "id": trial.id,
        "device": device_name(device),
        "versions": versions(),
        "seeds": {purpose: trial.axis(purpose) for purpose in ("data", "split", "start")},
    }
    result = new_result(trial, exclusive=exclusive) | {"device": record["device"]}
    with folder.locked(), computing_with(trial.protocol.threads, device):
        folder.begin(record)
        reset_peak_memory(device)
        try:
            ready = prepare(trial, device)
            result["parameters"] = ready.parameters
            schedule = Schedule(trial.protocol)
            result["status"], best = _train(trial, ready, schedule, folder, _apart(on_epoch), _apart(log))
            result["best_epoch"] = schedule.best_epoch
            if best:
                save(folder.path / MODEL, best)
                batch = trial.protocol.batch_size
                result["validation"] = evaluate(ready.model, ready.task, best, ready.parts["validation"], batch)
                result["test"] = evaluate(ready.model, ready.task, best, ready.parts["test"], batch)
            result["baselines"] = _baselines(ready)
        except Outside as outside:
            raise outside.error from None
        except Exception as error:
            if isinstance(error, OSError) and disk_is_full(error):
                raise
            result["status"], result["error"] = _failure(error)
            write_text(folder.path / TRACEBACK, traceback.format_exc())
        result |= _timing(folder.curve())
        result["peak_memory"] = peak_memory(device)
        folder.finish(record, result)
    return result


def _train(
    trial: Trial, ready: Ready, schedule: Schedule, folder: TrialFolder, on_epoch: OnEpoch, log: Log
) -> tuple[str, dict[str, Tensor]]:
    """Epochs until the schedule says stop. Returns the status and the best weights (none if there never were any)."""
    state, train = ready.state, ready.parts["train"]
    best = _resume(folder, state, schedule, log)
    curve = folder.keep_epochs(schedule.epoch)
    left = None if trial.protocol.timeout is None else trial.protocol.timeout - sum(line["seconds"] for line in curve)
    deadline = None if left is None else time.monotonic() + left
    device = train.targets.device
    for line in curve:
        on_epoch(line)
    while not schedule.finished:
        began = time.perf_counter()
        torch.manual_seed(trial.axis("epoch", schedule.epoch))  # dropout and other noise of this epoch
        order = _batch_order(trial, schedule.epoch, len(train)).to(device)
        lr = state.optimizer.param_groups[0]["lr"]
        try:
            loss = train_epoch(ready.model, ready.task, state, train, order, deadline)
        except OutOfTime:
            return "timeout", best
        scores = evaluate(
            ready.model, ready.task, state.weights(), ready.parts["validation"], trial.protocol.batch_size
        )
        validation_loss = next(iter(scores.values()))
        line = {"epoch": schedule.epoch + 1, "loss": loss, "validation": scores, "lr": float(lr)}
        if not (np.isfinite(loss) and np.isfinite(validation_loss)):
            folder.append(line | {"seconds": time.perf_counter() - began})
            return "diverged", best
        schedule.see(validation_loss)
        if schedule.improved:
            best = {name: tensor.detach().clone() for name, tensor in state.weights().items()}
        if schedule.reduce:
            for group in state.optimizer.param_groups:
                group["lr"] *= trial.protocol.plateau_factor
        synchronise(device)
        line["seconds"] = time.perf_counter() - began
        folder.append(line)
        save_checkpoint(folder.path / CHECKPOINT, state, best, schedule)
        on_epoch(line)
    return "done", best


def _resume(folder: TrialFolder, state: State, schedule: Schedule, log: Log) -> dict[str, Tensor]:
    """Continue from the checkpoint if there is a good one. A damaged one is put aside: the trial begins anew."""
    path = folder.path / CHECKPOINT
    if not path.exists():
        return {}
    try:
        return load_checkpoint(path, state, schedule)
    except StoreError as error:
        log(f"{error} The trial starts again from its beginning.")
        return {}


def _batch_order(trial: Trial, epoch: int, count: int) -> Tensor:
    """(steps, batch size): which samples each step sees, the same for all rivals."""
    order = np.random.default_rng(trial.axis("order", epoch)).permutation(count)
    return torch.from_numpy(order.reshape(-1, trial.protocol.batch_size))


def _baselines(ready: Ready) -> dict[str, dict[str, float]]:
    samples, parts = ready.samples, ready.split
    train, test = (Samples(samples.inputs[index], samples.targets[index]) for index in (parts.train, parts.test))
    return ready.task.baselines(train, test)


def _failure(error: Exception) -> tuple[str, str]:
    memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
    text = str(error) if isinstance(error, ArenaError) else f"{type(error).__name__}: {error}"
    return ("out_of_memory" if memory else "failed"), text


def _timing(curve: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds with the device synchronised, validation included; a continued run counts what came before."""
    seconds = [line["seconds"] for line in curve]
    return {
        "epochs": len(curve),
        "seconds_total": sum(seconds),
        "seconds_per_epoch": sum(seconds) / len(seconds) if seconds else None,
    }
