"""Soft actor-critic against values computed by hand in float64: log-probabilities, all three losses, one update."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from nnarena.rl.critics import ask_plainly, make_critics
from nnarena.rl.sac import LOG_STD, SAC, Batch, split, squashed

B, F, A, H = 7, 3, 2, 5
LR, TAU = 0.1, 0.3


def policy(moments: Tensor) -> TransformedDistribution:
    mean, log_std = moments.chunk(2, -1)
    return TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform()])


def test_log_probabilities_are_those_of_a_squashed_gaussian_summed_over_actions():
    torch.manual_seed(0)
    moments, noise = 0.5 * torch.randn(B, 2 * A, dtype=torch.float64), torch.randn(B, A, dtype=torch.float64)
    action, log_prob = squashed(moments, noise)
    assert log_prob.shape == (B,)
    torch.testing.assert_close(log_prob, policy(moments).log_prob(action), rtol=1e-9, atol=1e-9)


def test_the_way_back_is_that_of_the_formula_also_where_the_deviation_is_at_a_bound():
    torch.manual_seed(0)
    moments, noise = 0.5 * torch.randn(B, 2 * A, dtype=torch.float64), torch.randn(B, A, dtype=torch.float64)
    moments[0, A], moments[1, A] = -21, 3
    assert torch.autograd.gradcheck(lambda moments: squashed(moments, noise), moments.requires_grad_())
    gradient = torch.autograd.grad(squashed(moments, noise)[1].sum(), moments)[0]
    assert gradient[:2, A].tolist() == [0, 0] and (gradient[2:, A:] != 0).all()


def test_the_density_has_a_mass_of_one():
    moments = torch.tensor([[0.4, -0.7]], dtype=torch.float64)
    noise = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    action, log_prob = squashed(moments.expand(len(noise), -1), noise)
    mass = torch.trapezoid(log_prob.exp(), action[:, 0])
    assert float(mass) == pytest.approx(1.0, abs=1e-6)


def test_far_from_the_middle_log_probabilities_stay_finite_and_have_gradients():
    moments = torch.tensor([[30.0, 1.0], [-30.0, 1.0]], requires_grad=True)
    log_prob = squashed(moments, torch.zeros(2, 1))[1]
    # −½ log 2π − log σ − log(1 − tanh² u), of which the last is 2 (|u| − log 2) out there.
    expected = -0.5 * math.log(2 * math.pi) - 1 + 2 * (30 - math.log(2))
    torch.testing.assert_close(log_prob, torch.full((2,), expected))
    (gradient,) = torch.autograd.grad(log_prob.sum(), moments)
    torch.testing.assert_close(gradient[:, 0], torch.tensor([2.0, -2.0]))


def test_the_deviation_is_kept_between_two_bounds():
    _, log_std = split(torch.tensor([[0.0, 0.0, -99.0, 99.0]]))
    assert log_std.tolist() == [list(LOG_STD)]


class Setup:
    """An agent in float64 with plain gradient descent, and the random numbers that its next update will draw."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.actor = nn.Linear(F, 2 * A).double()
        critics = [tensor.detach().double().requires_grad_() for tensor in make_critics(F + A, H)]
        self.before = [tensor.detach().clone() for tensor in critics]
        optimizers = [torch.optim.SGD(params, LR) for params in (self.actor.parameters(), critics)]
        self.sac = SAC(
            self.actor, list(self.actor.parameters()), optimizers[0], critics, optimizers[1], A, lr=LR, tau=TAU
        )
        with torch.no_grad():
            self.sac.log_alpha.fill_(-0.5)
            for target in self.sac.targets:
                target.mul_(0.9)
        self.noises = [torch.randn(B, A, dtype=torch.float64) for _ in range(2)]
        waiting = list(self.noises)
        self.sac.noise_like = lambda action: waiting.pop(0)  # type: ignore[method-assign]

        def make(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64)

        s, s2 = make(B, F), make(B, F)
        discount = 0.99 * (torch.arange(B) % 3 > 0)
        self.batch = Batch(s, make(B, A).tanh(), make(B), discount.double(), s2, (s,), (s2,))


def test_an_update_moves_everything_by_the_gradients_of_its_losses():
    setup = Setup()
    sac, batch, alpha = setup.sac, setup.batch, math.exp(-0.5)
    twin = nn.Linear(F, 2 * A).double()
    twin.load_state_dict(setup.actor.state_dict())
    critics = [tensor.clone().requires_grad_() for tensor in setup.before]
    targets = [tensor.clone() for tensor in sac.targets]

    # By hand: the policy as a distribution of torch, the critics one after the other.
    mean, log_std = twin(batch.observation).chunk(2, -1)
    action = (mean + log_std.exp() * setup.noises[0]).tanh()
    log_prob = policy(twin(batch.observation)).log_prob(action)
    with torch.no_grad():
        mean2, log_std2 = twin(batch.following).chunk(2, -1)
        action2 = (mean2 + log_std2.exp() * setup.noises[1]).tanh()
        value = ask_plainly(targets, batch.following, action2).min(0).values
        y = batch.reward + batch.discount * (value - alpha * policy(twin(batch.following)).log_prob(action2))
    critic_loss = sum(0.5 * ((q - y) ** 2).mean() for q in ask_plainly(critics, batch.observation, batch.action))
    moved = [c - LR * g for c, g in zip(critics, torch.autograd.grad(critic_loss, critics), strict=True)]
    actor_loss = (alpha * log_prob - ask_plainly(moved, batch.observation, action).min(0).values).mean()
    gradients = torch.autograd.grad(actor_loss, list(twin.parameters()), retain_graph=True)
    alpha_gradient = float(-(log_prob.detach() + -A).mean())

    sac.update(batch)
    for ours, expected in zip(sac.critics, moved, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    for ours, start, gradient in zip(setup.actor.parameters(), twin.parameters(), gradients, strict=True):
        torch.testing.assert_close(ours, start - LR * gradient, rtol=1e-9, atol=1e-12)
    # Adam's first step is its learning rate against the sign of the gradient.
    assert float(sac.log_alpha.detach()) == pytest.approx(-0.5 - LR * math.copysign(1, alpha_gradient), rel=1e-6)
    for ours, start, new in zip(sac.targets, targets, moved, strict=True):
        torch.testing.assert_close(ours, start + TAU * (new.detach() - start), rtol=1e-9, atol=1e-12)
    expected = [float(value.detach()) for value in (critic_loss, actor_loss, -log_prob.mean())]
    assert sac.losses.tolist() == pytest.approx(expected, rel=1e-9)


def test_targets_begin_as_copies_of_the_critics():
    critics = make_critics(F + A, H)
    actor = nn.Linear(F, 2 * A)
    optimizers = [torch.optim.SGD(params, LR) for params in (actor.parameters(), critics)]
    sac = SAC(actor, list(actor.parameters()), optimizers[0], critics, optimizers[1], A, lr=LR)
    for critic, target in zip(critics, sac.targets, strict=True):
        torch.testing.assert_close(critic.detach(), target, rtol=0, atol=0)
        assert critic.data_ptr() != target.data_ptr()


def test_the_temperature_stays_positive_however_long_it_falls():
    setup = Setup()
    for _ in range(200):
        setup.sac.move_alpha([torch.tensor(1.0, dtype=torch.float64)])
    assert 0 < float(setup.sac.log_alpha.detach().exp()) < 1e-6
