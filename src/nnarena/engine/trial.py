"""Trials from their request to their result: one alone, or several of one kind as one population.

Honest by construction: the splits, the order of batches and the start values come from seeds that all rivals with
the same seed share; validation alone selects the model; the test set is read once, on the best checkpoint (or besides
after every epoch with `watch_test`, for the record only); whatever goes wrong becomes a row with its reason.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nnarena.core.errors import first_line
from nnarena.core.files import disk_is_full
from nnarena.core.trial import Trial
from nnarena.core.workload import expecting
from nnarena.engine.device import computing_with, free_memory, reset_peak_memory, synchronise
from nnarena.engine.logs import passing_on
from nnarena.engine.members import Member
from nnarena.engine.practice import Practice, Practitioner, practises
from nnarena.engine.stack import Unstackable, is_out_of_memory, make_trainer
from nnarena.engine.trainer import OutOfTime, Trainer
from nnarena.results.folder import TrialFolder

EPOCHS = 20  # that training lasts in all likelihood, where the protocol allows them
Log = Callable[[str], None]
Tell = Callable[[Trial, dict[str, Any]], None]


class Outside(BaseException):
    """An error of whoever watches, not of the trial: it ends the run, and the trial can go on another time."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _apart(call: Callable[..., None]) -> Callable[..., None]:
    """`call`, whose errors are not the trial's."""

    def told(*values: Any) -> None:
        try:
            call(*values)
        except Exception as error:
            raise Outside(error) from error

    return told


def _once(log: Log) -> Log:
    """`log`, which is told but once what is true of every member."""
    said: set[str] = set()

    def tell(text: str) -> None:
        if text not in said:
            said.add(text)
            log(text)

    return tell


@dataclass(frozen=True)
class Watch:
    """Who is told of every epoch, every result, and what is worth a line."""

    epoch: Tell
    finish: Tell
    log: Log


def run_trial(
    trial: Trial,
    folder: TrialFolder,
    device: torch.device,
    *,
    exclusive: bool = True,
    on_epoch: Callable[[dict[str, Any]], None] = lambda line: None,
    log: Log = print,
) -> dict[str, Any]:
    """Train and test, from the beginning or from where a stopped run left off. Returns what `result.json` holds."""
    told = lambda trial, line: on_epoch(line)  # noqa: E731
    return run_population([(trial, folder)], device, exclusive=exclusive, on_epoch=told, log=log)[0]


def run_population(
    trials: Sequence[tuple[Trial, TrialFolder]],
    device: torch.device,
    *,
    exclusive: bool = True,
    on_epoch: Tell = lambda trial, line: None,
    on_finish: Tell = lambda trial, result: None,
    log: Log = print,
) -> list[dict[str, Any]]:
    """The same for trials that differ in nothing but seed and learning rate, as one stacked model where possible.

    Where it is not, they run one after another; where memory does not suffice, in halves. Each has its own folder, as
    if it had run alone, so that any of them can be continued alone or in other company. Those whose models learn from
    what they do always run one after another.
    """
    alone, protocol = practises(trials[0][0]), trials[0][0].protocol
    members = [(Practitioner if alone else Member)(trial, folder, device, exclusive) for trial, folder in trials]
    watch = Watch(_apart(on_epoch), _apart(on_finish), _apart(_once(log)))
    with ExitStack() as held:
        for member in members:
            held.enter_context(member.folder.locked())
        held.enter_context(computing_with(protocol.threads, device, protocol.precision))
        held.enter_context(passing_on(watch.log))
        for member in members:
            member.folder.begin(member.record)
        groups = deque([[member] for member in members] if alone else [members])
        try:
            while groups:
                groups.extendleft(reversed(_run_group(groups.popleft(), device, watch)))
        except Outside as outside:
            raise outside.error from None
    return [member.result for member in members]


def _run_group(members: list[Member], device: torch.device, watch: Watch) -> list[list[Member]]:
    """Run all together. Returns the groups in which those must be tried again that could not be finished so."""
    reset_peak_memory(device)
    try:
        ready = [member for member in members if _prepare(member, len(members) > 1, watch)]
        for alike in _by_shapes(ready):
            with _quiet(len(alike) > 1):
                _run_epochs(alike, device, watch)
        return []
    except Exception as error:
        if isinstance(error, OSError) and disk_is_full(error):
            raise
        left = [member for member in members if not member.is_over]
        if len(members) == 1:
            members[0].fail(error)
            _finish(members[0], watch)
            return []
        if not left:
            raise
        left[0].check_device(error)
        groups = _smaller(left, error, watch.log)
        for member in left:
            member.__dict__.pop("ready", None)
    free_memory(device)  # outside of the handler: the error's frames hold on to it
    return groups


def _smaller(members: list[Member], error: Exception, log: Log) -> list[list[Member]]:
    """How to go on with members that could not be trained together; they continue from their checkpoints."""
    name, count = members[0].name, len(members)
    if is_out_of_memory(error) and count > 1:
        half = (count + 1) // 2
        log(f"{name}: not enough memory for {count} trials as one; going on with {half} at a time.")
        return [members[:half], members[half:]]
    reason = str(error) if isinstance(error, Unstackable) else f"{type(error).__name__}: {first_line(error)}"
    how = f"{count} trials run one after another and not as one" if count > 1 else "the last trial goes on alone"
    log(f"{name}: {how}: {reason}")
    return [[member] for member in members]


def _prepare(member: Member, in_company: bool, watch: Watch) -> bool:
    """Whether it is ready to train; one of many that cannot be is a row of its own."""
    try:
        curve = member.prepare(watch.log)
    except Exception as error:
        if not in_company or is_out_of_memory(error) or (isinstance(error, OSError) and disk_is_full(error)):
            raise
        member.fail(error)
        _finish(member, watch)
        return False
    for line in curve:
        watch.epoch(member.trial, line)
    return True


def _by_shapes(members: list[Member]) -> list[list[Member]]:
    """Seeds whose splits have other sizes cannot be stacked with the rest."""
    groups: dict[tuple[Any, ...], list[Member]] = {}
    for member in members:
        groups.setdefault(member.shapes, []).append(member)
    return list(groups.values())


def _run_epochs(members: list[Member], device: torch.device, watch: Watch) -> None:
    """Epochs until every member is over. Who is over stands still, and leaves the stack when half of it is."""
    trainer: Trainer | None = None
    try:
        while True:
            for member in members:
                if not member.is_over and member.schedule.finished:
                    _score(member, "done", watch)
            active = [member for member in members if not member.is_over]
            if not active:
                return
            if trainer is None or 2 * len(active) <= len(trainer.members):
                if trainer is not None:
                    trainer.close()
                trainer = _trainer_of(active, device, watch.log)
            _run_epoch(trainer, device, watch)
    finally:
        if trainer is not None:
            trainer.close()


def _trainer_of(members: list[Member], device: torch.device, log: Log) -> Trainer:
    first = members[0]
    if isinstance(first, Practitioner):
        return Practice(first, device)
    return make_trainer(first.trial, members, device, log)


def _run_epoch(trainer: Trainer, device: torch.device, watch: Watch) -> None:
    members: list[Member] = trainer.members  # type: ignore[assignment]
    active = [(row, member) for row, member in enumerate(members) if not member.is_over]
    first = active[0][1]
    began = time.perf_counter()
    torch.manual_seed(first.trial.axis("epoch", first.schedule.epoch))  # dropout and other noise of this epoch
    orders = [None if member.is_over else member.order() for member in members]
    trainer.set_noise([None if member.is_over else member.noise() for member in members])
    deadlines = [member.deadline for _, member in active]
    try:
        with expecting(calls=expected_steps(trainer)):
            losses = trainer.train(orders, max(filter(None, deadlines)) if None not in deadlines else None)
    except OutOfTime:
        for _, member in active:
            _score(member, "timeout", watch)
        return
    now = time.monotonic()
    scores = trainer.validate()
    shared = {"population": len(active)} if len(active) > 1 else {}
    lines: list[tuple[Member, dict[str, Any]]] = []
    for row, member in active:
        if len(active) > 1 and member.deadline is not None and now > member.deadline:
            _score(member, "timeout", watch)
            continue
        line = {"epoch": member.schedule.epoch + 1, "loss": losses[row], "validation": scores[row], "lr": member.lr}
        line |= trainer.remarks(row)
        validation_loss = next(iter(scores[row].values()))
        if not (np.isfinite(losses[row]) and np.isfinite(validation_loss)):
            member.folder.append(line | {"seconds": time.perf_counter() - began} | shared)
            _score(member, "diverged", watch)
            continue
        member.see(validation_loss, trainer.state(row))
        lines.append((member, line))
    synchronise(device)
    seconds = time.perf_counter() - began  # in a population the time of all of them: the line says so
    for member, line in lines:
        line |= {"seconds": seconds} | shared
        if member.trial.protocol.watch_test:
            line["test"] = member.watch()
        member.store(line)
        watch.epoch(member.trial, line)


def expected_steps(trainer: Trainer) -> int:
    """About how many steps a trial alone on the CPU takes; 0 for others, which have nothing to decide by it.

    The same at every epoch: a trial that continues must compute as it began, or its bits were others.
    """
    if trainer.device.type != "cpu" or len(trainer.members) > 1:
        return 0
    member: Member = trainer.members[0]  # type: ignore[assignment]
    return trainer.steps * min(member.trial.protocol.epochs, EPOCHS)


def _score(member: Member, status: str, watch: Watch) -> None:
    """The end of a trial's training, and its row."""
    try:
        member.score(status)
    except Exception as error:
        if isinstance(error, OSError) and disk_is_full(error):
            raise
        member.fail(error)
    _finish(member, watch)


def _finish(member: Member, watch: Watch) -> None:
    member.finish()
    watch.finish(member.trial, member.result)


@contextmanager
def _quiet(stacked: bool) -> Iterator[None]:
    """Without torch's remark that one of a stacked model's operations has no fast way yet."""
    with warnings.catch_warnings():
        if stacked:
            warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
