"""Gymnasium's classic control environments: what is known of them without Gymnasium, and several of them at a time.

N environments, F observed numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnarena.core.errors import DataError, UnknownName


@dataclass(frozen=True)
class Environment:
    """One environment: Gymnasium's name, sizes, and the mean return of 100 episodes from which on it is solved.

    `scale` is about how large each observed number usually gets; a network divides by it.
    """

    name: str
    actions: int
    scale: tuple[float, ...]
    solved: float

    @property
    def observations(self) -> int:
        return len(self.scale)


ENVIRONMENTS = {
    "acrobot": Environment("Acrobot-v1", 3, (1.0, 1.0, 1.0, 1.0, 4.0, 9.0), -100.0),
    "cartpole": Environment("CartPole-v1", 2, (2.4, 3.0, 0.21, 3.0), 475.0),
    "mountaincar": Environment("MountainCar-v0", 3, (1.2, 0.07), -130.0),
}


def find(name: str) -> Environment:
    if name not in ENVIRONMENTS:
        raise UnknownName("environment", name, ENVIRONMENTS)
    return ENVIRONMENTS[name]


def make(environment: Environment) -> Any:
    """The environment itself; DataError names what to install."""
    try:
        import gymnasium

        return gymnasium.make(environment.name, disable_env_checker=True)
    except Exception as error:  # Gymnasium has errors of its own for what it does not know or lacks
        wanted = 'pip install "nnarena[control]"'
        raise DataError(f"{environment.name} needs Gymnasium ({error}): `{wanted}`.") from error


@dataclass(frozen=True)
class Step:
    """What came of one action in each environment: (N, F) states, (N,) rewards and how it ended, if it did.

    `terminated` is an end that belongs to the problem: nothing can be earned after it. `truncated` is the clock's:
    the state goes on being worth something, only nobody looks. `following` is the state in which the action ended,
    before anything starts again.
    """

    following: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Crowd:
    """N environments of one kind, each of which starts again when it is over. `states` (N, F) are where they stand."""

    def __init__(self, environment: Environment, seeds: Sequence[int]) -> None:
        self.members = [make(environment) for _ in seeds]
        # Seeded once: every later start comes from the environment's own generator.
        starts = [member.reset(seed=seed)[0] for member, seed in zip(self.members, seeds, strict=True)]
        self.states = np.stack(starts).astype(np.float32)

    def step(self, actions: np.ndarray) -> Step:
        following = np.empty_like(self.states)
        reward = np.empty(len(actions), np.float32)
        ends = np.zeros((2, len(actions)), bool)
        after = following.copy()
        for place, (member, action) in enumerate(zip(self.members, actions.tolist(), strict=True)):
            following[place], reward[place], ends[0, place], ends[1, place], _ = member.step(action)
            over = ends[:, place].any()
            after[place] = member.reset()[0] if over else following[place]
        self.states = after
        return Step(following, reward, ends[0], ends[1])

    def close(self) -> None:
        for member in self.members:
            member.close()


Policy = Callable[[np.ndarray], np.ndarray]  # (N, F) states to (N,) actions


@dataclass(frozen=True)
class Episode:
    """One episode: (T, F) the states in which something was done, (T,) what was done there, and what it earned."""

    states: np.ndarray
    actions: np.ndarray
    total: float


def play(environment: Environment, policy: Policy, seeds: Sequence[int], at_once: int = 64) -> list[Episode]:
    """One episode from the start that each seed gives, in the order of the seeds; up to `at_once` at a time."""
    found: list[Episode] = []
    for first in range(0, len(seeds), at_once):
        found += _play_together(environment, policy, seeds[first : first + at_once])
    return found


def _play_together(environment: Environment, policy: Policy, seeds: Sequence[int]) -> list[Episode]:
    members = [make(environment) for _ in seeds]
    current = [member.reset(seed=seed)[0] for member, seed in zip(members, seeds, strict=True)]
    states: list[list[np.ndarray]] = [[] for _ in seeds]
    actions: list[list[int]] = [[] for _ in seeds]
    totals = [0.0] * len(seeds)
    running = list(range(len(seeds)))
    while running:
        chosen = policy(np.stack([current[place] for place in running]).astype(np.float32)).tolist()
        still = []
        for place, action in zip(running, chosen, strict=True):
            states[place].append(current[place])
            actions[place].append(action)
            current[place], reward, terminated, truncated, _ = members[place].step(action)
            totals[place] += float(reward)
            if not (terminated or truncated):
                still.append(place)
        running = still
    for member in members:
        member.close()
    return [
        Episode(np.stack(states[place]).astype(np.float32), np.array(actions[place], np.int64), totals[place])
        for place in range(len(seeds))
    ]
