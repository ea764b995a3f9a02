"""Environments of Gymnasium side by side.

N environments, F features of an observation, A actions.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnarena.core.errors import ArenaError, DataError

EXTRA = "pip install 'nnarena[control]'"


@dataclass(frozen=True)
class Step:
    """What came of an action in all environments.

    following    (N, F) the observation after it, also where the episode is over
    reward       (N,)
    terminated   (N,) the episode is over by itself: nothing follows
    over         (N,) it is over by itself or by the limit of time
    """

    following: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    over: np.ndarray


def check_installed(*packages: str) -> None:
    """DataError, with what to type, if one of the packages that a task needs is not here."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise DataError(f"This task needs the package {package}: {EXTRA}.")


def make_one(name: str) -> Any:
    """One environment with continuous actions; a sentence if there is none."""
    check_installed("gymnasium")
    import gymnasium

    with _quiet():
        try:
            env = gymnasium.make(name, disable_env_checker=True)
        except gymnasium.error.DependencyNotInstalled as error:
            raise DataError(f"The environment {name} lacks a package: {EXTRA}. ({error})") from error
        except gymnasium.error.Error as error:
            raise ArenaError(f"Gymnasium has no environment {name!r}: {error}") from error
    box = gymnasium.spaces.Box
    reads, acts = env.observation_space, env.action_space
    if not isinstance(acts, box) or not np.isfinite([acts.low, acts.high]).all():
        env.close()
        raise ArenaError(
            f"Soft actor-critic needs continuous actions between two bounds, and {name} has {type(acts).__name__} "
            f"actions: {acts}."
        )
    if not isinstance(reads, box) or len(reads.shape) != 1 or len(acts.shape) != 1:
        env.close()
        raise ArenaError(f"{name} must be observed and acted on by vectors, not by {reads} and {acts}.")
    return env


class Environments:
    """N copies of an environment, stepped one after the other in this process.

    Actions lie between −1 and 1, and are stretched to the bounds of the environment. An episode that is over is not
    followed by another one by itself: `begin` says which shall begin. So no observation of a new episode is ever taken
    for the last one of the old.
    """

    def __init__(self, name: str, count: int, observation: int, actions: int) -> None:
        self.envs = [make_one(name) for _ in range(count)]
        first = self.envs[0]
        found = first.observation_space.shape[0], first.action_space.shape[0]
        if found != (observation, actions):
            self.close()
            raise ArenaError(
                f"{name} has {found[0]} observations and {found[1]} actions, not {observation} and {actions}."
            )
        low, high = first.action_space.low, first.action_space.high
        self.middle, self.reach = (low + high) / 2, (high - low) / 2
        self.limit: int = first.spec.max_episode_steps or 1000
        self.following = np.zeros((count, observation), np.float32)

    def __len__(self) -> int:
        return len(self.envs)

    def seed(self, seed: int) -> np.ndarray:
        """Begin an episode everywhere (N, F). All that happens from here on follows from the seed and the actions."""
        seeds = np.random.SeedSequence(seed).generate_state(len(self.envs))
        return np.stack([env.reset(seed=int(own))[0] for env, own in zip(self.envs, seeds, strict=True)]).astype("f4")

    def begin(self, which: np.ndarray, observation: np.ndarray) -> None:
        """New episodes where `which` (N,) says so; their first observations replace those in `observation`."""
        for place in np.flatnonzero(which):
            observation[place] = self.envs[place].reset()[0]

    def step(self, actions: np.ndarray, running: np.ndarray | None = None) -> Step:
        """Act (N, A) everywhere, or where an episode is `running`."""
        count = len(self.envs)
        reward, terminated, over = np.zeros(count, np.float32), np.zeros(count, bool), np.zeros(count, bool)
        following = self.following.copy()
        scaled = self.middle + self.reach * actions
        for place in range(count) if running is None else np.flatnonzero(running):
            seen, reward[place], end, cut, _ = self.envs[place].step(scaled[place])
            following[place], terminated[place], over[place] = seen, end, end or cut
        self.following = following
        return Step(following, reward, terminated, over)

    def close(self) -> None:
        for env in self.envs:
            env.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without MuJoCo's remarks on the files of Gymnasium, which nobody here can change, and their log file."""
    try:
        mujoco: Any = importlib.import_module("mujoco")
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
