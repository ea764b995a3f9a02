"""Agents that need no reinforcement to be good: networks that imitate a rule which is known to solve the problem."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from nnarena.rl.dqn import QNetwork, Trained, greedy_score
from nnarena.rl.environments import find
from nnarena.rl.teachers import SETTINGS, _keep, teacher_name

# Push to where the pole falls; push to where the car goes.
RULES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cartpole": lambda s: (0.05 * s[:, 0] + 0.2 * s[:, 1] + s[:, 2] + 0.5 * s[:, 3] > 0).astype(np.int64),
    "mountaincar": lambda s: 2 * (s[:, 1] >= 0).astype(np.int64),
}


def imitate(name: str, rule: Callable[[np.ndarray], np.ndarray], steps: int = 300) -> Trained:
    """A network that acts by a rule, and what it truly scores."""
    environment, rng = find(name), np.random.default_rng(0)
    states = (rng.normal(size=(4096, environment.observations)) * environment.scale * 0.5).astype(np.float32)
    x, y = torch.from_numpy(states), torch.from_numpy(rule(states))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small products: more would only wait for each other
    torch.manual_seed(0)
    network = QNetwork(environment, SETTINGS[name].hidden_size, SETTINGS[name].layers)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(steps):
        part = slice(256 * (step % 16), 256 * (step % 16) + 256)
        optimizer.zero_grad()
        F.cross_entropy(network(x[part]), y[part]).backward()
        optimizer.step()
    score = greedy_score(environment, network, 1, 20)
    torch.set_num_threads(threads)
    return Trained(network, score, 1, 1.0)


def keep(name: str, trained: Trained, seed: int = 0) -> str:
    """Put an agent where a teacher is looked for."""
    _keep(teacher_name(name, seed), trained, find(name), SETTINGS[name], seed)
    return teacher_name(name, seed)
