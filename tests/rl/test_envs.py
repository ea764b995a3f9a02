"""Environments side by side: what they give, what follows from a seed, and what is refused."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from nnarena.core.errors import ArenaError, DataError
from nnarena.rl import envs as room
from nnarena.rl.envs import Environments, make_one


def play(envs: Environments, seed: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    observation = envs.seed(seed)
    seen = [observation]
    for _ in range(steps):
        step = envs.step(rng.uniform(-1, 1, (len(envs), len(envs.middle))).astype("f4"))
        observation = step.following.copy()
        envs.begin(step.over, observation)
        seen.append(observation)
    return np.stack(seen)


@pytest.mark.parametrize(("name", "sizes"), [("Pendulum-v1", (3, 1)), ("Hopper-v5", (11, 3))])
def test_the_seed_decides_all_whatever_was_before(name, sizes):
    envs = Environments(name, 2, *sizes)
    first, other, again = (play(envs, seed, 60) for seed in (1, 2, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:, 0], first[:, 1])
    envs.close()


def test_the_last_observation_of_an_episode_is_its_own():
    envs = Environments("Pendulum-v1", 1, 3, 1)
    observation = envs.seed(0)
    for count in range(1, 201):
        step = envs.step(np.zeros((1, 1), "f4"))
        assert bool(step.over[0]) == (count == 200) and not step.terminated[0]
    last = step.following.copy()
    envs.begin(step.over, observation)
    assert not np.array_equal(last, observation)
    np.testing.assert_array_equal(last, step.following)
    envs.close()


def test_an_end_by_itself_is_told_from_the_limit_of_time():
    envs = Environments("Hopper-v5", 1, 11, 3)
    envs.seed(0)
    for _ in range(300):
        step = envs.step(np.ones((1, 3), "f4"))
        if step.over[0]:
            break
    assert step.terminated[0] and step.over[0]
    envs.close()


def test_actions_are_stretched_to_the_bounds():
    envs, plain = Environments("Pendulum-v1", 1, 3, 1), make_one("Pendulum-v1")
    start = envs.seed(3)
    plain.reset(seed=0)
    plain.unwrapped.state = envs.envs[0].unwrapped.state.copy()
    assert envs.middle == 0 and envs.reach == 2
    ours = envs.step(np.array([[0.5]], "f4"))
    theirs = plain.step(np.array([1.0], "f4"))
    np.testing.assert_allclose(ours.following[0], theirs[0], rtol=1e-6)
    assert ours.reward[0] == pytest.approx(theirs[1]) and start.dtype == np.float32


def test_who_is_over_stands_still():
    envs = Environments("Pendulum-v1", 2, 3, 1)
    envs.seed(0)
    before = envs.step(np.ones((2, 1), "f4"))
    after = envs.step(np.ones((2, 1), "f4"), running=np.array([True, False]))
    np.testing.assert_array_equal(after.following[1], before.following[1])
    assert after.reward[1] == 0 and not np.array_equal(after.following[0], before.following[0])


def test_discrete_actions_are_refused():
    with pytest.raises(ArenaError, match=r"needs continuous actions .* CartPole-v1 has Discrete actions"):
        make_one("CartPole-v1")


def test_other_sizes_are_refused():
    with pytest.raises(ArenaError, match="Pendulum-v1 has 3 observations and 1 actions, not 4 and 1"):
        Environments("Pendulum-v1", 1, 4, 1)


def test_an_environment_that_nobody_knows_is_refused():
    with pytest.raises(ArenaError, match="no environment 'Pendulun-v1'"):
        make_one("Pendulun-v1")


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None if name == "mujoco" else known(name))
    with pytest.raises(DataError, match=r"needs the package mujoco: pip install 'nnarena\[control\]'"):
        room.check_installed("gymnasium", "mujoco")
