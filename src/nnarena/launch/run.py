"""Run a study: check all of it, then do what is not done yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nnarena.core.components import LENT
from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.files import disk_is_full
from nnarena.core.study import Study
from nnarena.core.trial import KINDS, Trial
from nnarena.engine.device import check_precision, cores, pick_device
from nnarena.engine.fit import check_data, check_fit
from nnarena.engine.trial import run_population
from nnarena.launch.populations import population_limit, populations
from nnarena.launch.sharing import find_mps, sharing
from nnarena.launch.watch import Watcher
from nnarena.launch.workers import run_in_workers
from nnarena.results.start import settle
from nnarena.results.store import Store

AT_ONCE = 4  # populations that a GPU trains at the same time: three seeds of a cell keep a fifth of a large one busy
AGAIN = ("failed", "timeout", "out_of_memory")  # what may end otherwise another time


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
    does those again that failed, but not those that diverged: that is a finding, and doing them until one does not
    would be choosing.
    """
    watcher = watcher or Watcher()
    target = pick_device(device)
    check_precision(study.protocol.precision, target)
    study = settle(study, out)
    trials = check_study(study)
    limit = population_limit(population, target)
    count_jobs(jobs, target, populations(trials, limit))
    store = Store.create(out, study.tidied())
    try:
        with store.running():
            if retry:
                _forget_failures(store, trials)
            pending = store.pending(trials)
            groups = populations(pending, limit)
            with sharing(target, count_jobs(jobs, target, groups), watcher.log) as variables:
                count = count_jobs(jobs, target, groups, shared=variables is not None)
                at_once = sum(sorted(map(len, groups))[-count:])
                watcher.begin(pending, len(trials) - len(pending), at_once)
                try:
                    if count == 1:
                        _run_here(store, groups, target, watcher)
                    else:
                        run_in_workers(store, groups, str(target), count, watcher, variables or {})
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


def count_jobs(asked: int | None, device: torch.device, groups: list[list[Trial]], shared: bool | None = None) -> int:
    """How many populations run at once: as asked, else one a core on the CPU, and a few on a GPU.

    A few if they can share it (`shared`; None: find out), and if each has two cores to feed it; else one.
    """
    trials = [trial for group in groups for trial in group]
    own = any(getattr(trial, kind).ref.startswith(LENT) for trial in trials for kind in KINDS)
    if asked is not None and asked < 1:
        raise ArenaError(f"--jobs must be at least 1, not {asked}.")
    if own and asked is not None and asked > 1:
        raise ArenaError("Components handed over as Python objects run in one process: leave jobs at 1.")
    if own:
        return 1
    return max(1, min(asked or usual_jobs(device, trials, shared), len(groups)))


def usual_jobs(device: torch.device, trials: Sequence[Trial] = (), shared: bool | None = None) -> int:
    """How many run at once if nobody says."""
    if device.type == "cpu":
        return cores() // max((trial.protocol.threads for trial in trials), default=1)
    able = device.type == "cuda" and (find_mps() is not None if shared is None else shared)
    return min(AT_ONCE, max(1, cores() // 2)) if able else 1


def _forget_failures(store: Store, trials: list[Trial]) -> None:
    for trial in trials:
        folder = store.trial_folder(trial)
        if folder.is_done and folder.result()["status"] in AGAIN:
            folder.forget()


def _count(store: Store, trials: list[Trial]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in trials:
        folder = store.trial_folder(trial)
        status = folder.result()["status"] if folder.is_done else "pending"
        counts[status] = counts.get(status, 0) + 1
    return counts
