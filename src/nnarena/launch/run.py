"""Run a study: check all of it, then do what is not done yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from nnarena.core.components import LENT
from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.files import disk_is_full
from nnarena.core.study import Study
from nnarena.core.trial import KINDS, Trial
from nnarena.engine.device import pick_device
from nnarena.engine.fit import check_data, check_fit
from nnarena.engine.trial import run_population
from nnarena.launch.populations import population_limit, populations
from nnarena.launch.watch import Watcher
from nnarena.launch.workers import run_in_workers
from nnarena.results.store import Store


@dataclass(frozen=True)
class Outcome:
    """How a study ended: its store, and how many trials there are of each status."""

    store: Store
    counts: dict[str, int]

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.counts.items() if status != "done")


def check_study(study: Study) -> list[Trial]:
    """All trials of a study, once every name, option, fit and data set is known to be right."""
    trials = study.trials()
    if not trials:
        raise ArenaError(f"The study {study.name!r} has no trials left to run.")
    for trial in {trial.cell: trial for trial in reversed(trials)}.values():
        check_fit(trial)
        check_data(trial)
    return trials


def run_study(
    study: Study,
    out: Path,
    *,
    device: str = "auto",
    jobs: int | None = None,
    population: int | None = None,
    retry: bool = False,
    watcher: Watcher | None = None,
) -> Outcome:
    """Do every trial that has no result yet.

    `jobs` populations run at once, each of at most `population` trials of a cell that are trained as one. `retry`
    does those again that failed.
    """
    watcher = watcher or Watcher()
    target = pick_device(device)
    trials = check_study(study)
    count_jobs(jobs, target, trials)
    limit = population_limit(population, target)
    store = Store.create(out, study.tidied())
    try:
        with store.running():
            if retry:
                _forget_failures(store, trials)
            pending = store.pending(trials)
            groups = populations(pending, limit)
            count = min(count_jobs(jobs, target, pending), max(1, len(groups)))
            at_once = sum(sorted(map(len, groups))[-count:])
            watcher.begin(pending, len(trials) - len(pending), at_once)
            try:
                if count == 1:
                    _run_here(store, groups, target, watcher)
                else:
                    run_in_workers(store, groups, str(target), count, watcher)
            finally:
                watcher.end()
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise StoreError(
            f"No space is left for {out}. What is finished is safe; make room and repeat the command to go on."
        ) from error
    return Outcome(store, _count(store, trials))


def _run_here(store: Store, groups: list[list[Trial]], device: torch.device, watcher: Watcher) -> None:
    for group in groups:
        for trial in group:
            watcher.start(trial)
        run_population(
            [(trial, store.trial_folder(trial)) for trial in group],
            device,
            on_epoch=watcher.epoch,
            on_finish=watcher.finish,
            log=watcher.log,
        )


def count_jobs(asked: int | None, device: torch.device, pending: list[Trial]) -> int:
    """How many trials run at once: as asked, else one a core on the CPU, and one on a GPU."""
    own = any(getattr(trial, kind).ref.startswith(LENT) for trial in pending for kind in KINDS)
    if asked is not None and asked < 1:
        raise ArenaError(f"--jobs must be at least 1, not {asked}.")
    if own and asked is not None and asked > 1:
        raise ArenaError("Components handed over as Python objects run in one process: leave jobs at 1.")
    if own or device.type != "cpu":
        return min(asked or 1, max(1, len(pending)))
    threads = max((trial.protocol.threads for trial in pending), default=1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked or cores // threads, len(pending)))


def _forget_failures(store: Store, trials: list[Trial]) -> None:
    for trial in trials:
        folder = store.trial_folder(trial)
        if folder.is_done and folder.result()["status"] != "done":
            folder.forget()


def _count(store: Store, trials: list[Trial]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in trials:
        folder = store.trial_folder(trial)
        status = folder.result()["status"] if folder.is_done else "pending"
        counts[status] = counts.get(status, 0) + 1
    return counts
