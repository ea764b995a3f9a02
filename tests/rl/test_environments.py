"""Environments: what is known of them is true, ends are told apart, and episodes are the seed's."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from rl_helpers import RULES

from nnarena.core.errors import DataError, UnknownName
from nnarena.rl.environments import ENVIRONMENTS, Crowd, Environment, find, make, play


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_sizes_are_gymnasiums(name):
    environment = find(name)
    made = make(environment)
    assert made.observation_space.shape == (environment.observations,)
    assert made.action_space.n == environment.actions
    made.close()


def test_an_unknown_environment():
    with pytest.raises(UnknownName, match="did you mean 'cartpole'"):
        find("cartpol")


def test_gymnasium_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(DataError, match=r'CartPole-v1 needs Gymnasium .*pip install "nnarena\[control\]"'):
        make(find("cartpole"))


def test_an_environment_that_gymnasium_does_not_have():
    with pytest.raises(DataError, match=r"Trolley-v1 needs Gymnasium \("):
        make(Environment("Trolley-v1", 2, (1.0,), 0.0))


def test_a_fall_terminates_and_the_clock_truncates():
    crowd = Crowd(find("cartpole"), [3, 4])
    came = [crowd.step(np.zeros(2, np.int64)) for _ in range(15)]  # always to the left: it falls
    assert np.any([step.terminated for step in came], axis=0).all()
    assert not np.any([step.truncated for step in came])
    crowd.close()
    crowd = Crowd(find("mountaincar"), [3])
    for count in range(1, 201):  # doing nothing: it stays in the valley
        came = crowd.step(np.ones(1, np.int64))
        assert bool(came.truncated[0]) == (count == 200) and not came.terminated[0] and came.reward[0] == -1
    crowd.close()


def test_what_followed_is_not_the_next_start():
    crowd, single = Crowd(find("cartpole"), [5]), make(find("cartpole"))
    single.reset(seed=5)
    while True:
        state, _, terminated, _, _ = single.step(0)
        came = crowd.step(np.zeros(1, np.int64))
        np.testing.assert_array_equal(came.following[0], state)
        if terminated:
            break
        np.testing.assert_array_equal(crowd.states[0], state)
    assert came.terminated[0] and abs(state[2]) > 0.2
    np.testing.assert_array_equal(crowd.states[0], single.reset()[0])
    assert abs(crowd.states[0, 2]) < 0.05
    crowd.close()
    single.close()


def test_episodes_are_gymnasiums_whatever_is_played_at_the_same_time():
    environment, rule = find("mountaincar"), RULES["mountaincar"]
    seeds = [7, 8, 9, 10, 11]
    episodes = play(environment, rule, seeds, at_once=2)
    single = make(environment)
    for seed, episode in zip(seeds, episodes, strict=True):
        state, total = single.reset(seed=seed)[0], 0.0
        for step in range(len(episode.actions)):
            np.testing.assert_array_equal(episode.states[step], state)
            assert episode.actions[step] == rule(state[None])[0]
            state, reward, terminated, truncated, _ = single.step(int(episode.actions[step]))
            total += reward
        assert (terminated or truncated) and total == episode.total == -len(episode.actions)
    single.close()
    for one, same in zip(episodes, play(environment, rule, seeds), strict=True):
        np.testing.assert_array_equal(one.states, same.states)
    assert episodes[0].states.dtype == np.float32 and episodes[0].actions.dtype == np.int64
