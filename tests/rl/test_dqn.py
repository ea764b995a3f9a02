"""Deep Q-learning: target, loss and gradient by hand, replay, exploration, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nnarena.rl.dqn import Explorer, QNetwork, Replay, Settings, greedy_score, q_loss, q_target, train
from nnarena.rl.environments import find
from nnarena.rl.teachers import SETTINGS

B, A, GAMMA = 6, 3, 0.9


def make_batch(observations=2):
    generator = torch.Generator().manual_seed(0)
    states, following = (torch.randn(B, observations, generator=generator, dtype=torch.float64) for _ in range(2))
    actions = torch.randint(A, (B,), generator=generator)
    reward = 3 * torch.randn(B, generator=generator, dtype=torch.float64)
    return states, actions, reward, following, torch.tensor([0, 1, 0, 0, 1, 0], dtype=torch.bool)


def test_the_target_is_chosen_by_one_and_valued_by_the_other():
    chosen_by = torch.tensor([[1.0, 5.0, 2.0], [1.0, 5.0, 2.0], [9.0, 5.0, 2.0]])
    valued_by = torch.tensor([[10.0, 20.0, 30.0], [10.0, 20.0, 30.0], [-1.0, 20.0, 30.0]])
    y = q_target(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([False, True, False]), chosen_by, valued_by, 0.5)
    assert y.tolist() == [1 + 0.5 * 20, 1, -0.5]  # a value, not an index; nothing after an end; and not the maximum


def test_a_value_that_is_not_finite_does_not_reach_over_an_end():
    bad = torch.full((1, 2), torch.inf)
    assert q_target(torch.tensor([2.0]), torch.tensor([True]), bad, bad, 0.9).tolist() == [2]


def test_loss_and_gradient_by_hand():
    torch.manual_seed(0)
    online, target = (nn.Linear(2, A).double() for _ in range(2))
    batch = make_batch()
    loss = q_loss(online, target, batch, GAMMA)
    loss.backward()
    W, b = online.weight.detach().numpy(), online.bias.detach().numpy()
    V, c = target.weight.detach().numpy(), target.bias.detach().numpy()
    states, actions, reward, following, terminated = (part.numpy() for part in batch)
    total, gradient = 0.0, np.zeros_like(W)
    for s, a, r, f, end in zip(states, actions, reward, following, terminated, strict=True):
        y = r if end else r + GAMMA * (V @ f + c)[np.argmax(W @ f + b)]
        error = (W @ s + b)[a] - y
        total += 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
        gradient[a] += np.clip(error, -1, 1) * s
    assert loss.item() == pytest.approx(total / B, rel=1e-12)
    np.testing.assert_allclose(online.weight.grad.numpy(), gradient / B, rtol=1e-11)
    assert target.weight.grad is None


@pytest.mark.parametrize("layers", [1, 2])
def test_the_network_by_hand(layers):
    environment = find("mountaincar")
    network, x = QNetwork(environment, 8, layers).double(), torch.randn(5, 2, dtype=torch.float64)
    h = (x / torch.tensor(environment.scale)).double()
    for place in range(layers):
        linear, norm = network.body[3 * place], network.body[3 * place + 1]
        h = h @ linear.weight.T + linear.bias
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        h = h * norm.weight + norm.bias
        h = h * 0.5 * (1 + torch.erf(h / 2**0.5))
    torch.testing.assert_close(network(x), h @ network.body[-1].weight.T + network.body[-1].bias)


def test_the_policy_is_greedy_and_does_not_see_later_changes():
    network = QNetwork(find("acrobot"), 16)
    states = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    policy = network.policy()
    before = policy(states)
    np.testing.assert_array_equal(before, network(torch.from_numpy(states)).argmax(-1).numpy())
    assert [int(policy(states[place : place + 1])[0]) for place in range(50)] == before.tolist()
    with torch.no_grad():
        network.body[-1].bias += torch.tensor([0.0, 0.0, 100.0])
    np.testing.assert_array_equal(policy(states), before)
    assert set(network.policy()(states)) == {2}


def transitions(first, count):
    numbers = np.arange(first, first + count, dtype=np.float32)
    return numbers[:, None], numbers.astype(np.int64), numbers, numbers[:, None] + 0.5, numbers.astype(int) % 2 == 0


def test_replay_keeps_the_latest_and_whole_transitions():
    replay, generator = Replay(10, 1), torch.Generator().manual_seed(0)
    replay.add(*transitions(0, 4))
    assert set(replay.draw(200, generator)[1].tolist()) == {0, 1, 2, 3}, "nothing that was not lived"
    for first in range(4, 28, 4):
        replay.add(*transitions(first, 4))
    states, actions, reward, following, terminated = replay.draw(500, generator)
    assert set(actions.tolist()) == set(range(18, 28))
    assert torch.equal(states[:, 0], reward) and torch.equal(following[:, 0], reward + 0.5)
    assert torch.equal(terminated, actions % 2 == 0)


def test_exploring():
    greedy = np.array([0, 1, 2, 1])
    explorer = Explorer(4, 3, 5, np.random.default_rng(0))
    for _ in range(20):
        np.testing.assert_array_equal(explorer(greedy, 0.0), greedy)
    always = np.stack([Explorer(1, 3, 1, np.random.default_rng(seed))(np.zeros(1, int), 1.0) for seed in range(300)])
    assert np.bincount(always[:, 0]).min() > 70
    held = Explorer(1, 10**9, 5, np.random.default_rng(0))
    taken = np.array([held(np.zeros(1, int), 1.0)[0] for _ in range(500)])
    lengths = np.diff(np.flatnonzero(np.diff(taken, prepend=-1)))
    assert lengths.min() == 1 and lengths.max() == 5 and 2.5 < lengths.mean() < 3.6
    rare = Explorer(1, 100, 1, np.random.default_rng(0))
    share = np.mean([rare(np.zeros(1, int), 0.1)[0] != 0 for _ in range(3000)])
    assert 0.07 < share < 0.13


QUICK = Settings(steps=600, enough=500.0, warm_up=100, look=200, trials=5, hidden_size=16)


def test_the_seed_decides_everything():
    torch.manual_seed(5)
    here, threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(5)
    one, same, other = (train(find("cartpole"), QUICK, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), here) and torch.get_num_threads() == threads, "and it touches nothing of others"
    for a, b in zip(one.network.state_dict().values(), same.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert one.score == same.score and one.steps == 600
    assert not torch.equal(one.network.body[0].weight, other.network.body[0].weight)


def test_progress_is_told_and_learning_ends_when_it_is_good_enough(monkeypatch):
    monkeypatch.setattr("nnarena.rl.dqn.SPEAK", 0.0)
    lines: list[str] = []
    trained = train(find("cartpole"), replace(QUICK, enough=1.0), 0, lines.append)
    assert trained.steps == 200 and len(lines) == 1
    assert lines[0].startswith("Teacher for CartPole-v1: 200 of at most 600 steps, greedy return ")


def test_it_learns():
    """A few seconds suffice to balance several times longer than a start does."""
    environment = find("cartpole")
    settings = replace(SETTINGS["cartpole"], steps=4_000, look=2_000, trials=10, hidden_size=32)
    fresh = greedy_score(environment, QNetwork(environment, 32), 0, 20)
    trained = train(environment, settings, 0)
    assert trained.score > 4 * fresh and trained.score > 60


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_every_teacher_solves_its_environment(name):
    environment = find(name)
    trained = train(environment, SETTINGS[name], 0)
    assert trained.score >= environment.solved
    assert greedy_score(environment, trained.network, 12_345, 100) >= environment.solved, "from other starts too"
