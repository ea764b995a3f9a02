"""Soft actor-critic beside stable-baselines3's: steps of an environment a second, and the return after equally many.

Both have the hyper-parameters of Haarnoja et al. 2018: actor and critics (256, 256) with relu, batches of 256, Adam at
3e-4, γ 0.99, τ 0.005, the temperature learned, a hundred uniform steps, then an update after every step. Both are
examined in the same episodes, by the middle of the policy.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nnarena.api import make_study
from nnarena.core.components import catalogue
from nnarena.core.errors import UnknownName
from nnarena.core.seeds import derive
from nnarena.core.trial import Trial
from nnarena.engine.device import computing_with, synchronise
from nnarena.engine.practice import make_learner
from nnarena.rl.agent import Agent
from nnarena.rl.envs import Environments

PEER = "stable_baselines3"
MODEL = "mlp[layers=2,norm=false,activation=relu]"
STEPS, WARM_UP, EPISODES, EPOCH = 20, 100, 10, 1000
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A way to learn: its steps a second, how many times the peer's that is, and what it reached with every seed."""

    way: str
    steps_per_second: float | None = None
    ratio: float | None = None
    returns: tuple[float, ...] = ()
    note: str = ""


def choose(name: str) -> str:
    known = [task for task, component in catalogue("task").items() if component.module == "nnarena.tasks.control"]
    if name not in known:
        raise UnknownName("task of control", name, known)
    return name


def compare(
    task: str, device: torch.device, rounds: int, learn: int, seeds: int, tell: Tell, threads: int = 1
) -> Iterator[Row]:
    """Steps a second, measured in turns; then, if `learn` is not 0, the returns after so many steps of every seed."""
    component = catalogue("task")[task].load()
    component().check()
    with computing_with(threads, device):
        if importlib.util.find_spec(PEER) is None:
            tell("ours")
            ours = Ours(task, 0, device)
            ours(WARM_UP + STEPS)
            seconds = statistics.median(_seconds(ours, device) for _ in range(rounds))
            (returns,) = _learn([Ours], task, learn, seeds, device, tell)
            yield Row(way="ours", steps_per_second=STEPS / seconds, returns=returns)
            yield Row(way="stable-baselines3", note="skipped: pip install stable-baselines3")
            return
        tell("steps in turns")
        ways = [Ours(task, 0, device), Theirs(task, 0, device)]
        for way in ways:
            way(WARM_UP + STEPS)
        turns = [[_seconds(way, device) for way in ways] for _ in range(rounds)]
        # The median of pairs, which were measured under the same conditions; the fastest of either may be luck.
        ratio = statistics.median(theirs / mine for mine, theirs in turns)
        mine, theirs = (statistics.median(column) for column in zip(*turns, strict=True))
        reached = _learn([Ours, Theirs], task, learn, seeds, device, tell)
        yield Row(way="ours", steps_per_second=STEPS / mine, ratio=ratio, returns=reached[0])
        yield Row(way="stable-baselines3", steps_per_second=STEPS / theirs, ratio=1.0, returns=reached[1])


def _seconds(way: Way, device: torch.device) -> float:
    """Of some steps. On one thread of a CPU the process's own time: what else runs here is not theirs."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    synchronise(device)
    began = clock()
    way(STEPS)
    synchronise(device)
    return clock() - began


def _learn(
    makers: list[type[Ours] | type[Theirs]], task: str, steps: int, seeds: int, device: torch.device, tell: Tell
) -> list[tuple[float, ...]]:
    """What each reaches with every seed. One seed after the other, so that a run that is broken off has pairs."""
    returns: list[list[float]] = [[] for _ in makers]
    for seed in range(seeds if steps else 0):
        for make, reached in zip(makers, returns, strict=True):
            way = make(task, seed, device)
            for done in range(0, steps, EPOCH):
                tell(f"{way.name}, seed {seed}: {done} of {steps} steps")
                way(min(EPOCH, steps - done))
            reached.append(way.judge())
            tell(f"{way.name}, seed {seed}: a return of {reached[-1]:.0f} after {steps} steps")
    return [tuple(reached) for reached in returns]


def make_our_trial(task: str, seed: int) -> Trial:
    options = f"{task}[frames=1,warm_up={WARM_UP},episodes={EPISODES},buffer=1000000]"
    settings = {"batch_size": 256, "lr": 3e-4}
    return make_study(None, [options], [MODEL], seeds=seed + 1, settings=settings).trials()[seed]


class Way:
    """Something that learns when it is called with a number of steps."""

    name: str

    def __call__(self, steps: int) -> None:
        raise NotImplementedError

    def judge(self) -> float:
        raise NotImplementedError


class Ours(Way):
    name = "ours"

    def __init__(self, task: str, seed: int, device: torch.device) -> None:
        self.trial = make_our_trial(task, seed)
        learner = make_learner(self.trial, device, log=print)[1]
        assert isinstance(learner, Agent)
        self.agent = learner

    def __call__(self, steps: int) -> None:
        torch.manual_seed(self.trial.axis("epoch", self.agent.taken))
        self.agent.steps = steps
        self.agent.practise(lambda: None)

    def judge(self) -> float:
        return self.agent.examine("test")["return"]


class Theirs(Way):
    name = "stable-baselines3"

    def __init__(self, task: str, seed: int, device: torch.device) -> None:
        from stable_baselines3 import SAC  # type: ignore[import-not-found]

        self.task: Any = catalogue("task")[task].load()()
        self.twin = make_our_trial(task, seed)
        self.sac = SAC("MlpPolicy", self.task.environment, learning_starts=WARM_UP, seed=seed, device=device)

    def __call__(self, steps: int) -> None:
        self.sac.learn(steps, reset_num_timesteps=False)

    def judge(self) -> float:
        """The same episodes as ours."""
        task = self.task
        envs = Environments(task.environment, EPISODES, task.observations, task.actions)
        observation = envs.seed(derive(self.twin.axis("practice"), "episodes", "test"))
        running, total = np.ones(EPISODES, bool), np.zeros(EPISODES)
        while running.any():
            action = self.sac.predict(observation, deterministic=True)[0]
            step = envs.step((action - envs.middle) / envs.reach, running)
            total += step.reward
            running, observation = running & ~step.over, step.following
        envs.close()
        return float(total.mean())
