"""Tasks of control: sizes as Gymnasium has them, options that are checked, an agent that practises."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from nnarena.core.components import catalogue
from nnarena.core.errors import ArenaError, BadOption, DataError
from nnarena.core.learner import Means
from nnarena.core.seeds import derive
from nnarena.rl import envs
from nnarena.rl.agent import Agent
from nnarena.tasks.control import Control, Pendulum

NAMES = ["halfcheetah", "walker2d", "hopper", "pendulum"]
SMALL = {"steps": 60, "warm_up": 20, "episodes": 2, "critic_size": 8, "buffer": 200, "frames": 3}


def make_agent(batch_size: int = 16, seed: int = 1, model: str = "mlp", **options) -> Agent:
    task = Pendulum(**(SMALL | options))
    torch.manual_seed(0)
    net = catalogue("model")[model].load()(task.spec, hidden_size=8)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    means = Means(seed, torch.device("cpu"), batch_size, lambda params: torch.optim.Adam(params, 1e-3))
    agent = task.learner(net, optimizer, means)
    assert isinstance(agent, Agent)
    return agent


def practise(agent: Agent, epoch: int) -> dict[str, float]:
    torch.manual_seed(epoch)
    return agent.practise(lambda: None)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_environment(name):
    task = catalogue("task")[name].load()()
    task.check()
    assert task.practises
    assert task.spec.input_shape == (5, task.observations) and task.spec.output_size == 2 * task.actions


def test_a_package_that_is_missing_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr(envs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"nnarena\[control\]"):
        catalogue("task")["hopper"].load()().check()


class Cart(Control):
    environment, observations, actions, packages = "CartPole-v1", 4, 1, ("gymnasium",)


class Wrong(Control):
    environment, observations, actions, packages = "Pendulum-v1", 4, 1, ("gymnasium",)


@pytest.mark.parametrize(("task", "text"), [(Cart, "continuous actions"), (Wrong, "3 observations and 1 actions")])
def test_environments_that_do_not_fit_are_refused(task, text):
    with pytest.raises(ArenaError, match=text):
        task().check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"steps": 100, "envs": 3}, "steps=100 must be a multiple of envs=3"),
        ({"steps": 99, "envs": 3, "warm_up": 0}, "buffer=100000 must be a multiple of envs=3"),
        ({"steps": 100}, "warm_up must lie within the first epoch, from 0 to 99, not 100"),
        ({"frames": 0}, "frames must be at least 1"),
        ({"gamma": 1.5}, "gamma must lie above 0"),
        ({"burn_in": 1}, "add carry=true"),
        ({"carry": True, "burn_in": 3}, "burn_in must be at most half of the 5 frames"),
        ({"carry": True, "frames": 1}, "at least 2 frames"),
        ({"buffer": 4}, "buffer=4 must hold more than 5 frames"),
    ],
)
def test_options_that_cannot_be_are_refused(options, text):
    with pytest.raises(BadOption, match=text):
        Pendulum(**options)


def test_an_epoch_takes_its_steps_and_updates_after_the_warm_up():
    agent = make_agent()
    updates = []
    agent.update = lambda work=agent.update: (updates.append(1), work())
    told = practise(agent, 0)
    assert len(agent.replay) == 60 and agent.taken == 60 and len(updates) == 40
    assert set(told) == {"loss", "reward_per_step", "actor_loss", "entropy", "alpha"}
    rewards = agent.replay.kept["reward"][:60]
    assert told["reward_per_step"] == pytest.approx(float(rewards.mean()), rel=1e-5)
    practise(agent, 1)
    assert len(updates) == 100 and agent.taken == 120
    agent.close()


@pytest.mark.parametrize(
    "options", [{}, {"envs": 2}, {"n_step": 3}, {"model": "gru", "carry": True, "burn_in": 1}], ids=str
)
def test_another_agent_goes_on_with_the_same_bits(options):
    agent, other = make_agent(**options), make_agent(**options)
    practise(agent, 0)
    other.load({name: tensor.clone() for name, tensor in agent.tensors().items()})
    other.model.load_state_dict(agent.model.state_dict())
    for mine, theirs in zip(optimizers(other), optimizers(agent), strict=True):
        mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    other.renew()
    agent.examine("validation")  # leaves nothing behind
    assert practise(agent, 1) == practise(other, 1)
    for name, tensor in agent.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name
    assert agent.examine("test") == other.examine("test") != agent.examine("validation")


def optimizers(agent: Agent) -> list[torch.optim.Optimizer]:
    return [agent.sac.optimizer, *agent.optimizers.values()]


def test_a_state_of_another_agent_is_refused_and_changes_nothing():
    agent, other = make_agent(), make_agent(critic_size=9)
    practise(agent, 0)
    before = other.tensors()
    with pytest.raises(ValueError, match="other names or shapes"):
        other.load(agent.tensors())
    assert all(torch.equal(before[name], tensor) for name, tensor in other.tensors().items())


def test_returns_are_those_of_whole_episodes_by_the_middle_of_the_policy():
    agent = make_agent(episodes=3)
    scores = agent.examine("validation")
    assert scores == {"cost": -scores["return"], "return": scores["return"]}
    envs = agent.judges
    assert envs is not None
    observation, total = envs.seed(derive(1, "episodes", "validation")), np.zeros(3)
    window = np.repeat(observation[:, None], 3, 1)
    for _ in range(200):
        window = np.concatenate([window[:, 1:], observation[:, None]], 1)
        with torch.no_grad():
            action = agent.model(torch.from_numpy(window))[:, :1].tanh().numpy()
        step = envs.step(action)
        total, observation = total + step.reward, step.following
    assert scores["return"] == pytest.approx(total.mean(), rel=1e-5)


def test_rivals_with_the_same_seed_are_judged_alike():
    baselines = [make_agent(model=model).baselines()["random actions"] for model in ("mlp", "gru")]
    assert baselines[0] == baselines[1] and -2000 < baselines[0]["return"] < -500


def test_optimizers_that_look_at_whole_tensors_keep_the_critics_apart():
    task = Pendulum(**SMALL)
    orthadam = catalogue("optimizer")["orthadam"].load()
    net = catalogue("model")["mlp"].load()(task.spec, hidden_size=8)
    agent = task.learner(net, orthadam(net.parameters()), Means(0, torch.device("cpu"), 16, orthadam))
    assert agent.optimizers["critics"].population_dims == 1
    before = float(agent.sac.log_alpha.detach())
    practise(agent, 0)
    assert float(agent.sac.log_alpha.detach()) != before


def test_a_plan_knows_about_how_long_an_epoch_takes():
    assert 0 < make_agent().seconds() < 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_plain_agent_swings_the_pendulum_up_within_ten_thousand_steps(seed):
    task = Pendulum(episodes=20, frames=1)
    torch.manual_seed(seed)
    net = catalogue("model")["mlp"].load()(task.spec)
    optimizer = torch.optim.Adam(net.parameters(), 3e-4)
    means = Means(seed, torch.device("cpu"), 256, lambda params: torch.optim.Adam(params, 3e-4))
    agent = task.learner(net, optimizer, means)
    for epoch in range(10):
        practise(agent, 100 * seed + epoch)
    assert agent.examine("test")["return"] >= -200
