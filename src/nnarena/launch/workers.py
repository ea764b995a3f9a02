"""A pool of local worker processes.

A worker is `python -m nnarena.launch.worker`: it reads one JSON line a trial and writes JSON lines of what happens.
A worker that dies is replaced and its trial continues from its last checkpoint; when the same trial has cost three
workers, it is a failed row. When the driver dies, its workers notice and end.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from nnarena.core.errors import StoreError
from nnarena.core.trial import Trial
from nnarena.launch.watch import Watcher
from nnarena.results.folder import new_result
from nnarena.results.store import Store

LIVES = 3  # workers that one trial may cost


class Worker:
    """One process, and a thread that puts every line it writes into `inbox`."""

    def __init__(self, inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        self.trial: Trial | None = None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nnarena.launch.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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

    def give(self, trial: Trial, store: Store, device: str) -> None:
        self.trial = trial
        request = {
            "trial": trial.as_dict(),
            "id": trial.id,
            "folder": str(store.trial_folder(trial).path),
            "device": device,
        }
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


def run_in_workers(store: Store, pending: list[Trial], device: str, jobs: int, watcher: Watcher) -> None:
    waiting, lost = deque(pending), dict.fromkeys((trial.id for trial in pending), 0)
    inbox: queue.Queue[tuple[Worker, dict[str, Any] | None]] = queue.Queue()
    workers: list[Worker] = []

    def hand_out(worker: Worker) -> None:
        worker.trial = None
        if waiting:
            worker.give(waiting.popleft(), store, device)

    try:
        for _ in range(min(jobs, len(pending))):
            workers.append(Worker(inbox))
            hand_out(workers[-1])
        while any(worker.trial for worker in workers):
            worker, message = inbox.get()
            trial = worker.trial
            if trial is None:
                continue
            if message is not None:
                if _tell(watcher, trial, message):
                    hand_out(worker)
                continue
            worker.stop()
            workers.remove(worker)
            lost[trial.id] += 1
            if lost[trial.id] < LIVES:
                watcher.log(f"A worker died ({_reason(worker)}); {'/'.join(trial.cell)} continues in a new one.")
                waiting.appendleft(trial)
            else:
                watcher.finish(trial, _fail(store, trial, f"it cost {LIVES} workers ({_reason(worker)})"))
            workers.append(Worker(inbox))
            hand_out(workers[-1])
    finally:
        for worker in workers:
            worker.stop()


def _tell(watcher: Watcher, trial: Trial, message: dict[str, Any]) -> bool:
    """Pass a worker's message on. True when its trial is over."""
    match message["event"]:
        case "start":
            watcher.start(trial)
        case "epoch":
            watcher.epoch(trial, message["line"])
        case "log":
            watcher.log(message["text"])
        case "full":
            raise OSError(message["errno"], message["text"])
        case "refused":
            raise StoreError(message["text"])
        case "finish":
            watcher.finish(trial, message["result"])
            return True
    return False


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
