"""Agents that others learn from: trained once, kept with their score, and refused if they have not learned.

Each lies in a folder of its own among the data (`NNARENA_DATA`): `teacher.npz` holds its weights and its score, and
`teacher.json` says how it was made. The folder is named by all that determines the agent, so that other settings, or
another version of the way it learns, make another one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import nnarena
from nnarena.core.errors import ArenaError, DataError, StoreError
from nnarena.core.files import locked
from nnarena.data.dataset import Arrays, need
from nnarena.data.folder import store, stored_file
from nnarena.data.formats import read_plain_npz, reading
from nnarena.rl.dqn import TRIALS, Log, QNetwork, Settings, Trained, train
from nnarena.rl.environments import Environment, find

VERSION = 1  # of the way agents learn: another one makes other agents
PATIENCE = 3600.0  # seconds to wait for another process that trains the same agent
SETTINGS = {
    "acrobot": Settings(steps=60_000, enough=-80.0, lr=5e-4, hold=4),
    "cartpole": Settings(steps=60_000, enough=500.0),
    "mountaincar": Settings(steps=60_000, enough=-105.0, hold=20),
}
FACTS = ("score", "steps", "seconds")


class TeacherFailed(ArenaError):
    """An agent that has not learned: nothing can be learned from it."""


@dataclass(frozen=True)
class Teacher:
    """An agent that has solved its environment; `score` is its mean return over 100 greedy episodes."""

    environment: Environment
    network: QNetwork
    score: float

    @property
    def policy(self) -> Callable[[np.ndarray], np.ndarray]:
        return self.network.policy()


def get_teacher(name: str, seed: int = 0, log: Log | None = None) -> Teacher:
    """The agent that `seed` makes for an environment, from its folder, or trained now, which takes about a minute.

    TeacherFailed if it has not learned; that is found out once, too. `log` is told how it goes, else the log is.
    """
    log = log or logging.getLogger("nnarena").info
    environment, settings = find(name), SETTINGS[name]
    place = teacher_name(name, seed)
    folder = stored_file(place).parent
    with _alone(folder, environment, log):
        found = _load(place, environment, settings, log)
        if found is None:
            log(f"Teacher for {environment.name}: none is here yet, training one, at most {settings.steps:,} steps.")
            found = train(environment, settings, seed, log)
            _keep(place, found, environment, settings, seed)
            log(
                f"Teacher for {environment.name}: {found.score:.1f} over {TRIALS} greedy episodes "
                f"after {found.steps:,} steps and {found.seconds:.0f} s."
            )
    if not found.score >= environment.solved:
        raise TeacherFailed(
            f"The teacher for {environment.name} did not learn: it scored {found.score:.1f} over {TRIALS} greedy "
            f"episodes, and {environment.solved:g} is wanted. Take another one, as in [teacher={seed + 1}], or delete "
            f"{folder} to train it again."
        )
    return Teacher(environment, found.network, found.score)


def teacher_name(name: str, seed: int) -> str:
    """Where an agent lies, as a name for the folder of data."""
    made_by = {"settings": asdict(SETTINGS[name]), "environment": asdict(find(name)), "seed": seed, "version": VERSION}
    text = json.dumps(made_by, sort_keys=True, separators=(",", ":"))
    return f"teachers/{name}-{seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}/teacher"


@contextmanager
def _alone(folder: Path, environment: Environment, log: Log) -> Iterator[None]:
    """One process trains an agent, others wait for it and say so."""
    with ExitStack() as held:
        try:
            try:
                held.enter_context(locked(folder, 1.0, "busy"))
            except StoreError:
                log(f"Teacher for {environment.name}: another process is training it, waiting.")
                held.enter_context(locked(folder, PATIENCE, f"Another process is still training {folder}."))
        except OSError as error:
            raise DataError(
                f"Could not write {folder}: {error.strerror or error}. NNARENA_DATA names another folder."
            ) from error
        yield


def _keep(place: str, trained: Trained, environment: Environment, settings: Settings, seed: int) -> None:
    weights = {f"network.{name}": tensor.numpy() for name, tensor in trained.network.state_dict().items()}
    facts = {name: getattr(trained, name) for name in FACTS}
    record = {
        "environment": environment.name,
        "seed": seed,
        **facts,
        "episodes": TRIALS,
        "wanted": environment.solved,
        "settings": asdict(settings),
        "version": VERSION,
        "nnarena": nnarena.__version__,
        "torch": torch.__version__,
        "gymnasium": importlib.metadata.version("gymnasium"),
    }
    store(place, weights | {name: np.array(value, np.float64) for name, value in facts.items()}, record)


def _load(place: str, environment: Environment, settings: Settings, log: Log) -> Trained | None:
    """The agent that is here; None, and a line that says why, if its file is damaged."""
    path = stored_file(place)
    if not path.exists():
        return None
    try:
        arrays = read_plain_npz(path)
        with reading(path, f"a teacher for {environment.name}"):
            return _parse(arrays, environment, settings)
    except DataError as error:
        log(f"{error} The teacher is trained again.")
        return None


def _parse(arrays: Arrays, environment: Environment, settings: Settings) -> Trained:
    network = QNetwork(environment, settings.hidden_size, settings.layers)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    weights = {name: need(arrays, f"network.{name}", np.float32, shape) for name, shape in shapes.items()}
    facts = {name: float(need(arrays, name, np.float64, ())) for name in FACTS}
    numbers = [*weights.values(), *facts.values()]
    if not all(np.isfinite(number).all() for number in numbers):
        raise DataError("it holds numbers that are not finite")
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return Trained(network, facts["score"], int(facts["steps"]), facts["seconds"])
