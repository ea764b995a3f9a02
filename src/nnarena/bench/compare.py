"""Reference and competitors in turns, each in a process of its own."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import torch

from nnarena.bench import peers, recurrence
from nnarena.bench.recurrence import REFERENCE, Row, paths, prepare_population
from nnarena.bench.timing import LONG, Step, measure, side_by_side
from nnarena.core.errors import first_line
from nnarena.engine.device import cores, keep_memory

# Load slows torch's LSTM more than most, because its threads wait for each other: beside a reference that much slower
# than its best, anything looks fast. (In turns with others it takes up to 1.4 times its best on a machine at rest.)
BUSY = 2.0


def compare(
    names: list[str],
    device: torch.device,
    *,
    rounds: int = 7,
    seeds: int = 0,
    threads: int | None = None,
    length: int | None = None,
    apart: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """A row for every way to train every competitor, as soon as it is known; the reference first.

    On a CPU, reference and competitor each have a process of their own (`apart`): what one did to the memory of its
    process, such as leaving large blocks in the allocator's hands, changes the time of the other by a third or more.
    """
    stage = Apart if apart and device.type == "cpu" else Here
    if device.type == "cuda":
        compile_ahead([name for name in names if name not in peers.PEERS], device, seeds, length, tell)
    with stage(threads) as unit:
        tell(f"{REFERENCE}: checking its gradient")
        row = _checked(REFERENCE, "torch", device, length, stage(threads))
        unit.prepare(REFERENCE, "torch", device, length)
        unit.least = min(unit.measure(1) for _ in range(5))
        yield replace(row, ratio=1.0, seconds=unit.measure(100) if device.type == "cuda" else None)
        for name in names:
            if name == REFERENCE:
                continue
            if name in peers.PEERS and not peers.PEERS[name].installed:
                package = peers.PEERS[name].package
                yield Row(model=name, path=package, task="add", note=f"skipped: {package} is not installed")
                continue
            for path in paths(name, device):
                tell(f"{name}, {path}: checking its gradient" + (", compiling" if path == "compiled" else ""))
                row = _checked(name, path, device, length, stage(threads))
                if not row.note:
                    tell(f"{name}, {path}: measuring")
                    with stage(threads) as own:
                        row = _timed(row, own, unit, device, rounds, length)
                if seeds and device.type == "cuda":
                    row = _with_population(row, seeds, device, length)
                tell(f"{name}, {path}: " + (row.note if row.ratio is None else f"{row.ratio:.2f}"))
                yield row


def compile_ahead(
    names: list[str], device: torch.device, seeds: int, length: int | None, tell: Callable[[str], None]
) -> None:
    """All kernels, several at a time: what they were compiled to lies on disk afterwards. What fails fails again."""
    done = 0
    with ProcessPoolExecutor(max(1, cores() // 2), multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_compile, name, device, seeds, length) for name in names]):
            done += 1
            tell(f"compiling kernels: {done} of {len(names)} models" + (" (one failed)" if future.exception() else ""))


def _compile(name: str, device: torch.device, seeds: int, length: int | None) -> None:
    recurrence.prepare(name, "fused", device, length)
    if seeds:
        prepare_population(name, "fused", device, seeds, length)


def _checked(name: str, path: str, device: torch.device, length: int | None, stage: Here) -> Row:
    """The check has a stage to itself: float64 would leave the allocator of a later measurement in another state."""
    with stage:
        return stage.check(name, path, device, length)


def _timed(row: Row, own: Here, unit: Here, device: torch.device, rounds: int, length: int | None) -> Row:
    try:
        note = own.prepare(row.model, row.path, device, length)
        ours, theirs = side_by_side(own.measure, unit.measure, rounds, device)
        if device.type == "cpu" and theirs > BUSY * unit.least:
            busy = f"the machine is busy: the reference took {theirs / unit.least:.1f} times its best; repeat"
            note = f"{note}; {busy}" if note else busy
        unit.least = min(unit.least, theirs)
        if device.type == "cuda":
            step, _ = recurrence.prepare(row.model, row.path, device, length, optimizer=False)
            row = replace(row, seconds=ours, passes=_steady(step, device))
    except Exception as error:
        return replace(row, note=f"failed: {first_line(error)}")
    return replace(row, ratio=ours / theirs, note=note)


def _steady(step: Step, device: torch.device) -> float:
    """Seconds of a call on a GPU, after a first one that does not count."""
    first = measure(step, device, 1)
    return min(measure(step, device, 3 if first < LONG else 1) for _ in range(3))


def _with_population(row: Row, seeds: int, device: torch.device, length: int | None) -> Row:
    """The time of one of `seeds` copies that train at once; or why they do not. A plain loop is nobody's population."""
    if row.ratio is None or row.path not in ("fused", "auto"):
        return row
    try:
        per_seed, passes = (
            _steady(prepare_population(row.model, row.path, device, seeds, length, optimizer), device) / seeds
            for optimizer in (True, False)
        )
    except Exception as error:
        note = f"population: {first_line(error)}"
        return replace(row, seeds=seeds, note=f"{row.note}; {note}" if row.note else note)
    return replace(row, seeds=seeds, per_seed=per_seed, passes_per_seed=passes)


class Here:
    """Where one competitor is checked or trained: in this process."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads
        self.least = math.inf  # seconds of a step in its best moment
        self._step: Step | None = None

    def __enter__(self) -> Here:
        self._before = torch.get_num_threads()
        torch.set_num_threads(self.threads or self._before)
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)

    def check(self, *what: Any) -> Row:
        return recurrence.check(*what)

    def prepare(self, name: str, path: str, device: torch.device, length: int | None) -> str:
        self._device = device
        self._step, note = recurrence.prepare(name, path, device, length)
        return note

    def measure(self, calls: int) -> float:
        assert self._step is not None, "prepare comes first"
        return measure(self._step, self._device, calls)


class Apart(Here):
    """The same in a process of its own."""

    def __enter__(self) -> Apart:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(self.threads,))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def check(self, *what: Any) -> Row:
        return self._pool.submit(_check, *what).result()

    def prepare(self, *what: Any) -> str:
        return self._pool.submit(_prepare, *what).result()

    def measure(self, calls: int) -> float:
        return self._pool.submit(_measure, calls).result()


_there: list[Here] = []  # in a process of its own: the one stage


def _begin(threads: int | None) -> None:
    _there.append(Here(threads).__enter__())


def _check(*what: Any) -> Row:
    return _there[0].check(*what)


def _prepare(name: str, *what: Any) -> str:
    if name not in peers.PEERS:
        keep_memory()  # as `nnarena run` does
    return _there[0].prepare(name, *what)


def _measure(calls: int) -> float:
    return _there[0].measure(calls)
