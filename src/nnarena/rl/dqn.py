"""Deep Q-learning: one network learns what each action is worth, and acts by it.

    y = r + γ (1 − terminated) Q'(s', argmax_a Q(s', a))         double Q-learning: Q chooses, the older Q' values
    lower  huber(Q(s, a) − y)   over transitions (s, a, r, s') that were lived before (replay)

An end that the clock sets (truncated) is not an end of the problem: the value of s' still counts there. While it
learns, the agent does something random with probability ε, which falls from 1, and may hold on to it for a few steps:
where a goal is reached by swinging, single random pushes cancel out (Dabney et al. 2020, Temporally-extended
ε-greedy exploration). The reward is always the environment's own.

References: Mnih et al. 2015; van Hasselt et al. 2015, https://arxiv.org/abs/1509.06461.

B batch, F observed numbers, A actions, H units.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.seeds import derive
from nnarena.rl.environments import Crowd, Environment, play

Log = Callable[[str], None]
TRIALS = 100  # greedy episodes that the final score is the mean of
SPEAK = 2.0  # seconds between two lines of progress


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an agent learns. The defaults suit problems that are solved in tens of thousands of steps.

    steps        actions in all environments together, at most
    hidden_size  units of the network's `layers`; one layer of 256, as in the thesis, suffices for all three
    memory       transitions that are kept
    crowd        environments that are played at the same time
    warm_up      actions before learning begins
    every        actions for one update
    explore      share of the steps over which ε falls from 1 to `epsilon`
    hold         steps at most for which a random action is kept
    synchronise  updates after which Q' becomes Q
    look         actions after which the greedy policy is tried on `trials` episodes; the best weights are kept
    enough       the mean return of these at which learning ends early
    max_norm     the gradient is cut to this length
    """

    steps: int
    enough: float
    hidden_size: int = 256
    layers: int = 1
    gamma: float = 0.99
    lr: float = 1e-3
    batch_size: int = 128
    memory: int = 50_000
    crowd: int = 8
    warm_up: int = 1_000
    every: int = 2
    explore: float = 0.2
    epsilon: float = 0.05
    hold: int = 1
    synchronise: int = 50
    look: int = 4_000
    trials: int = 100
    max_norm: float = 10.0


class QNetwork(nn.Module):
    """What each action is worth in a state: Q = W GELU(LN(V (s / scale) + c)) + b, (B, F) → (B, A).

    `layers` of them, where one does not suffice.
    """

    scale: Tensor

    def __init__(self, environment: Environment, hidden_size: int = 256, layers: int = 1) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(environment.scale))
        sizes = [environment.observations, *[hidden_size] * layers]
        parts: list[nn.Module] = []
        for read, units in itertools.pairwise(sizes):
            parts += [nn.Linear(read, units), nn.LayerNorm(units), nn.GELU()]
        self.body = nn.Sequential(*parts, nn.Linear(sizes[-1], environment.actions))

    def forward(self, states: Tensor) -> Tensor:
        return self.body(states / self.scale)

    def policy(self) -> Callable[[np.ndarray], np.ndarray]:
        """Always the best action. In float64, so that what else is asked at the same time cannot tip a balance."""
        network = copy.deepcopy(self).double().requires_grad_(False)
        return lambda states: network(torch.from_numpy(states).double()).argmax(-1).numpy()


Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # states, actions, rewards, following states, terminated


def q_target(reward: Tensor, terminated: Tensor, chosen_by: Tensor, valued_by: Tensor, gamma: float) -> Tensor:
    """(B,) y. `chosen_by` and `valued_by` (B, A) are Q and Q' of the state that followed."""
    best = valued_by.gather(-1, chosen_by.argmax(-1, keepdim=True)).squeeze(-1)
    return reward + gamma * torch.where(terminated, 0.0, best)


def q_loss(online: nn.Module, target: nn.Module, batch: Batch, gamma: float) -> Tensor:
    """The Huber loss of a batch. The gradient goes through Q(s, a) only."""
    states, actions, reward, following, terminated = batch
    with torch.no_grad():
        y = q_target(reward, terminated, online(following), target(following), gamma)
    return F.huber_loss(online(states).gather(-1, actions.unsqueeze(-1)).squeeze(-1), y)


class Replay:
    """The latest transitions; a new one takes the place of the oldest."""

    def __init__(self, size: int, observations: int) -> None:
        self.parts: Batch = (
            torch.zeros(size, observations),
            torch.zeros(size, dtype=torch.int64),
            torch.zeros(size),
            torch.zeros(size, observations),
            torch.zeros(size, dtype=torch.bool),
        )
        self.size, self.count = size, 0

    def add(self, *parts: np.ndarray) -> None:
        """N transitions: states, actions, rewards, following states, terminated."""
        places = torch.from_numpy(np.arange(self.count, self.count + len(parts[0])) % self.size)
        for kept, part in zip(self.parts, parts, strict=True):
            kept[places] = torch.from_numpy(part)
        self.count += len(parts[0])

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        places = torch.randint(min(self.count, self.size), (count,), generator=generator)
        states, actions, reward, following, terminated = (part[places] for part in self.parts)
        return states, actions, reward, following, terminated


class Explorer:
    """Sometimes something random, and for a while: with probability ε, a random action for 1 … `hold` steps."""

    def __init__(self, crowd: int, actions: int, hold: int, rng: np.random.Generator) -> None:
        self.actions, self.hold, self.rng = actions, hold, rng
        self.left, self.kept = np.zeros(crowd, np.int64), np.zeros(crowd, np.int64)

    def __call__(self, greedy: np.ndarray, epsilon: float) -> np.ndarray:
        """Of the best actions (N,) those that are taken. Draws as many numbers whatever happens."""
        fresh = (self.left == 0) & (self.rng.random(len(greedy)) < epsilon)
        self.left = np.where(fresh, self.rng.integers(1, self.hold + 1, len(greedy)), self.left)
        self.kept = np.where(fresh, self.rng.integers(0, self.actions, len(greedy)), self.kept)
        taken = np.where(self.left > 0, self.kept, greedy)
        self.left = np.maximum(self.left - 1, 0)
        return taken


@dataclass(frozen=True)
class Trained:
    """A network and the mean return of its greedy policy over `TRIALS` episodes that it had not seen."""

    network: QNetwork
    score: float
    steps: int
    seconds: float


def train(environment: Environment, settings: Settings, seed: int, log: Log = lambda text: None) -> Trained:
    """An agent for an environment. Every random choice comes from `seed`, and one thread computes."""
    threads, began = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    try:
        network, steps = _learn(environment, settings, seed, log)
        score = greedy_score(environment, network, derive("dqn", environment.name, seed, "score"), TRIALS)
    finally:
        torch.set_num_threads(threads)
    return Trained(network, score, steps, time.perf_counter() - began)


def greedy_score(environment: Environment, network: QNetwork, seed: int, count: int) -> float:
    """The mean return of `count` greedy episodes, whose starts come from `seed`."""
    episodes = play(environment, network.policy(), _seeds(np.random.default_rng(seed), count))
    return float(np.mean([episode.total for episode in episodes]))


def _learn(environment: Environment, settings: Settings, seed: int, log: Log) -> tuple[QNetwork, int]:
    """The weights whose greedy policy was the best that was seen, and after how many steps learning ended."""

    def axis(purpose: str) -> int:
        return derive("dqn", environment.name, seed, purpose)

    rng, generator = np.random.default_rng(axis("explore")), torch.Generator().manual_seed(axis("replay"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(axis("start"))
        online = QNetwork(environment, settings.hidden_size, settings.layers)
    target, best = copy.deepcopy(online).requires_grad_(False), copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), settings.lr, fused=True)
    replay = Replay(settings.memory, environment.observations)
    explorer = Explorer(settings.crowd, environment.actions, settings.hold, rng)
    crowd = Crowd(environment, _seeds(rng, settings.crowd))
    most, updates, spoke, looked = -np.inf, 0, time.monotonic(), 0
    try:
        for step in range(settings.crowd, settings.steps + 1, settings.crowd):
            with torch.no_grad():
                greedy = online(torch.from_numpy(crowd.states)).argmax(-1).numpy()
            fall = min(1.0, step / (settings.explore * settings.steps))
            states, actions = crowd.states, explorer(greedy, 1 + fall * (settings.epsilon - 1))
            came = crowd.step(actions)
            replay.add(states, actions, came.reward, came.following, came.terminated)
            while settings.warm_up + (updates + 1) * settings.every <= step:
                optimizer.zero_grad()
                q_loss(online, target, replay.draw(settings.batch_size, generator), settings.gamma).backward()
                nn.utils.clip_grad_norm_(online.parameters(), settings.max_norm)
                optimizer.step()
                updates += 1
                if updates % settings.synchronise == 0:
                    target.load_state_dict(online.state_dict())
            if step - looked >= settings.look and updates:
                looked = step
                score = greedy_score(environment, online, axis("look"), settings.trials)
                if score > most:
                    most, best = score, copy.deepcopy(online)
                if time.monotonic() - spoke > SPEAK:
                    spoke = time.monotonic()
                    log(
                        f"Teacher for {environment.name}: {step:,} of at most {settings.steps:,} steps, "
                        f"greedy return {score:.1f}, best {most:.1f}, wanted {settings.enough:g}"
                    )
                if most >= settings.enough:
                    return best, step
    finally:
        crowd.close()
    return best, settings.steps


def _seeds(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(2**31, size=count).tolist()
