"""A pool of local worker processes.

A worker is `python -m nnarena.launch.worker`: it reads one JSON line a population of trials, which may be one, and
writes JSON lines of what happens to each. A worker that dies is replaced and its trials continue from their last
checkpoints, each on its own, so that the one at fault does not take the others along; when the same trial has cost
three workers, it is a failed row. When the driver dies, its workers notice and end.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from nnarena.core.errors import StoreError
from nnarena.core.trial import Trial
from nnarena.launch.watch import Watcher
from nnarena.results.folder import new_result
from nnarena.results.store import Store

LIVES = 3  # workers that one trial may cost


class Worker:
    """One process, `variables` in its environment, and a thread that puts every line it writes into `inbox`."""

    def __init__(self, inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]], variables: Mapping[str, str]) -> None:
        self.trials: dict[str, Trial] = {}  # those that it has not finished, by id
        self.variables = variables
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nnarena.launch.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        self.reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self.reader.start()

    def _read(self, inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                inbox.put((self, json.loads(line)))
        except ValueError:
            pass  # it died in the middle of a line
        inbox.put((self, None))

    def give(self, trials: list[Trial], store: Store, device: str) -> None:
        self.trials = {trial.id: trial for trial in trials}
        asked = [
            {"trial": trial.as_dict(), "id": trial.id, "folder": str(store.trial_folder(trial).path)}
            for trial in trials
        ]
        request = {"trials": asked, "device": device}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: the reader reports that

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a request that it did not live to read
                    pipe.close()


def run_in_workers(
    store: Store,
    groups: list[list[Trial]],
    device: str,
    jobs: int,
    watcher: Watcher,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Do all trials, `jobs` groups at a time, each in a worker that takes one after another.

    `variables` let the workers share a GPU (`launch.sharing`). One that takes a dead one's place does without them.
    """
    waiting, lost = deque(groups), dict.fromkeys((trial.id for group in groups for trial in group), 0)
    inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]] = queue.Queue()
    workers: list[Worker] = []

    def hand_out(worker: Worker) -> None:
        if waiting:
            worker.give(waiting.popleft(), store, device)

    try:
        for _ in range(min(jobs, len(groups))):
            workers.append(Worker(inbox, variables))
            hand_out(workers[-1])
        while any(worker.trials for worker in workers):
            worker, message = inbox.get()
            if not worker.trials:
                continue
            if message is not None:
                _tell(watcher, worker.trials, message)
                if not worker.trials:
                    hand_out(worker)
                continue
            worker.stop()
            workers.remove(worker)
            waiting.extendleft(reversed(_mourn(worker, lost, store, watcher)))
            workers.append(Worker(inbox, {}))
            hand_out(workers[-1])
    finally:
        for worker in workers:  # all at once: on a GPU that they share, the death of one is an error for the others
            worker.process.kill()
        for worker in workers:
            worker.stop()


def _tell(watcher: Watcher, trials: dict[str, Trial], message: dict[str, Any]) -> None:
    """Pass a worker's message on. Who is finished leaves `trials`."""
    match message["event"]:
        case "start":
            watcher.start(trials[message["id"]])
        case "epoch":
            watcher.epoch(trials[message["id"]], message["line"])
        case "log":
            watcher.log(message["text"])
        case "full":
            raise OSError(message["errno"], message["text"])
        case "refused":
            raise StoreError(message["text"])
        case "finish":
            watcher.finish(trials.pop(message["id"]), message["result"])


def _mourn(worker: Worker, lost: dict[str, int], store: Store, watcher: Watcher) -> list[list[Trial]]:
    """A worker died: which of its trials continue, each alone. Those that have no life left are rows now."""
    going_on = []
    for trial in worker.trials.values():
        if store.trial_folder(trial).is_done:  # it died between the result and the news of it
            watcher.finish(trial, store.trial_folder(trial).result())
            continue
        lost[trial.id] += 1
        if lost[trial.id] < LIVES:
            going_on.append([trial])
        else:
            watcher.finish(trial, _fail(store, trial, f"it cost {LIVES} workers ({_reason(worker)})"))
    if going_on:
        name = "/".join(going_on[0][0].cell)
        what = f"{name} continues in a new one" if len(going_on) == 1 else f"{len(going_on)} × {name} continue apart"
        apart = ", without MPS" if worker.variables else ""
        watcher.log(f"A worker died ({_reason(worker)}); {what}{apart}.")
    return going_on


def _reason(worker: Worker) -> str:
    code = worker.process.returncode
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _fail(store: Store, trial: Trial, error: str) -> dict[str, Any]:
    """The row of a trial that no worker survived."""
    folder = store.trial_folder(trial)
    result = new_result(trial, exclusive=False)
    result |= {"status": "failed", "epochs": len(folder.curve()), "error": error}
    folder.finish(trial.as_dict() | {"id": trial.id}, result)
    return result
