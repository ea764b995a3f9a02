"""An agent on a GPU, whose updates are one CUDA graph. Run with `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch

from nnarena.core.components import catalogue
from nnarena.core.learner import Means
from nnarena.engine.graph import Replayed, make_recordable
from nnarena.rl.agent import Agent
from nnarena.rl.critics import Critics, ask_least, ask_plainly, correct, make_critics
from nnarena.tasks.control import Pendulum

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SMALL = {"steps": 60, "warm_up": 20, "episodes": 2, "critic_size": 32, "buffer": 200, "frames": 4}


def make_agent(model: str, logs: list[str], graphs: bool, **options) -> Agent:
    task = Pendulum(**(SMALL | options))
    torch.manual_seed(0)
    net = catalogue("model")[model].load()(task.spec, hidden_size=16).to(CUDA)

    def optimizer(params):
        return make_recordable(torch.optim.Adam(params, 1e-3), CUDA)

    def repeat(work):
        return Replayed(work, CUDA, logs.append, "an update") if graphs else work

    agent = task.learner(net, optimizer(net.parameters()), Means(1, CUDA, 32, optimizer, repeat))
    assert isinstance(agent, Agent)
    return agent


@pytest.mark.parametrize(
    ("model", "options"), [("mlp", {}), ("mlp", {"n_step": 3, "envs": 2}), ("gru", {"carry": True, "burn_in": 2})]
)
def test_updates_are_recorded_and_move_everything(model, options):
    logs: list[str] = []
    agent = make_agent(model, logs, graphs=True, **options)
    before = [tensor.detach().clone() for tensor in (*agent.sac.critics, *agent.model.parameters())]
    told = agent.practise(lambda: None)
    assert not logs and agent.update.graph is not None  # type: ignore[attr-defined]
    assert all(torch.isfinite(torch.tensor(value)) for value in told.values())
    for old, new in zip(before, (*agent.sac.critics, *agent.model.parameters()), strict=True):
        assert not torch.equal(old, new)


def test_a_recorded_update_is_the_same_update():
    agents = [make_agent("mlp", [], graphs) for graphs in (False, True)]
    for agent in agents:
        agent.sac.noise_like = torch.zeros_like  # type: ignore[method-assign]
        agent.replay.draw = lambda count, own=agent: (  # type: ignore[method-assign]
            torch.arange(count, device=CUDA) % own.replay.span[3],
            torch.zeros(count, dtype=torch.int64, device=CUDA),
        )
        torch.manual_seed(5)
        agent.practise(lambda: None)
    for one, other in zip(agents[0].sac.targets, agents[1].sac.targets, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_critics_agree_with_the_plain_way():
    critics = make_critics(20, 64, CUDA)
    observation, action = torch.randn(50, 17, device=CUDA), torch.randn(50, 3, device=CUDA, requires_grad=True)
    target = torch.randn(50, device=CUDA)
    error, ours = correct(Critics(critics), observation, action.detach(), target)
    plain = ask_plainly(critics, observation, action) - target
    torch.testing.assert_close(error, plain, rtol=1e-4, atol=1e-5)
    for one, other in zip(ours, torch.autograd.grad(0.5 * plain.square().mean(1).sum(), critics), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_the_lower_critic_alone_has_a_gradient():
    critics = [tensor.detach() for tensor in make_critics(20, 64, CUDA)]
    observation, action = torch.randn(50, 17, device=CUDA), torch.randn(50, 3, device=CUDA, requires_grad=True)
    values = ask_least(Critics(critics), observation, action), ask_plainly(critics, observation, action).min(0).values
    torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(value.square().sum(), action)[0] for value in values]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
