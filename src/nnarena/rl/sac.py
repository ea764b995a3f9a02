"""Soft actor-critic: the algorithm, and nothing else.

B samples, F features of an observation, A actions, H hidden units.

    a = tanh(u),   u = μ + σ ε,   ε ~ N(0, I)
    log π(a|s) = Σ_A [ log N(u; μ, σ²) − log(1 − a²) ]

    y    = R + d (min_i Q̄_i(s', a') − α log π(a'|s')),   a' ~ π(·|s')
    L_Q  = ½ Σ_i mean (Q_i(s, a) − y)²
    L_π  = mean (α log π(ã|s) − min_i Q_i(s, ã)),   ã ~ π(·|s)
    L_α  = −log α · mean (log π(ã|s) + H̄),   H̄ = −A
    Q̄_i ← Q̄_i + τ (Q_i − Q̄_i)

R is the sum of n discounted rewards, and d = γⁿ, or 0 where the episode was over by itself, and not by a limit of time.
α is learned through its logarithm, so that it stays positive.

Reference: Haarnoja et al. 2018, Soft actor-critic algorithms and applications, arXiv:1812.05905.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from nnarena.optim.lean import stepper
from nnarena.rl.critics import Critics, ask_least, correct

LOG_STD = (-20.0, 2.0)  # between which log σ is kept
Moments = Callable[..., Tensor]


@dataclass(frozen=True)
class Batch:
    """Some transitions.

    observation   (B, F) s, as the critics see it
    action        (B, A) a, between −1 and 1
    reward        (B,) R
    discount      (B,) d
    following     (B, F) s'
    inputs        what the actor is called with at s
    next_inputs   the same at s'
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    following: Tensor
    inputs: tuple[Tensor, ...]
    next_inputs: tuple[Tensor, ...]


def split(moments: Tensor) -> tuple[Tensor, Tensor]:
    """What an actor answers (B, 2A) as the mean μ and log σ of its Gaussian, each (B, A)."""
    mean, log_std = moments.chunk(2, -1)
    return mean, log_std.clamp(*LOG_STD)


def squashed(moments: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action (B, A) of the squashed Gaussian by standard normal `noise`, and its log-probability (B,)."""
    return _Squashed.apply(moments, noise)  # type: ignore[no-any-return]


class _Squashed(torch.autograd.Function):
    """log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u)), which holds where the left side has no digits left.

    The way back in few operations, with g and G the gradients of a and of log π:

        ∂u = g (1 − a²) + 2 G a,   ∂μ = ∂u,   ∂ log σ = ∂u σ ε − G, and 0 where log σ is out of its bounds
    """

    @staticmethod
    def forward(ctx: Any, moments: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = split(moments)
        drift = log_std.exp().mul_(noise)
        u = mean + drift
        # Half of log π, without what is the same for all.
        half = torch.sub(u + F.softplus(-2 * u), torch.addcmul(log_std, noise, noise, value=0.5), alpha=0.5)
        constant = mean.shape[-1] * (math.log(2 * math.pi) / 2 + 2 * math.log(2))
        action = u.tanh_()
        ctx.save_for_backward(moments, action, drift)
        return action, half.sum(-1).mul_(2).sub_(constant)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        of_action, of_log_prob = gradients[0], gradients[1][..., None]
        moments, action, drift = ctx.saved_tensors
        of_u = torch.addcmul(of_action, of_action * action, action, value=-1).addcmul_(of_log_prob, action, value=2)
        log_std = moments.chunk(2, -1)[1]
        inside = (log_std >= LOG_STD[0]) & (log_std <= LOG_STD[1])
        return torch.cat([of_u, (of_u * drift - of_log_prob) * inside], -1), None


class SAC:
    """Networks, temperature and optimizers, and one update of all of them.

    `actor(*inputs)` gives the moments (B, 2A); `params` are its parameters, `optimizer` moves them. `critics` and their
    optimizer are alike for every actor.
    """

    def __init__(
        self,
        actor: Moments,
        params: Sequence[Tensor],
        optimizer: Optimizer,
        critics: list[Tensor],
        critics_optimizer: Optimizer,
        actions: int,
        *,
        lr: float,
        tau: float = 0.005,
    ) -> None:
        self.actor, self.params, self.optimizer = actor, list(params), optimizer
        self.critics, self.critics_optimizer = critics, critics_optimizer
        self.frozen = [tensor.detach() for tensor in critics]  # the same memory, to which no gradient flows
        self.targets = [tensor.detach().clone() for tensor in critics]
        self.quick, self.slow = Critics(self.frozen), Critics(self.targets)
        like = critics[0].detach()
        self.log_alpha = like.new_zeros(()).requires_grad_()
        # By Adam whatever the optimizer: one that removes the part along a weight would leave a single number still.
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr, fused=True, capturable=like.is_cuda)
        self.alpha_optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]  # the first are
        self.actions, self.tau = actions, tau
        self.renew()
        self.losses = like.new_zeros(3, dtype=torch.float64)  # sums of L_Q, L_π and −log π

    def renew(self) -> None:
        """After a state was loaded into the optimizers, or their settings changed."""
        self.move_actor = stepper(self.optimizer, self.params)
        self.move_critics = stepper(self.critics_optimizer, self.critics)
        self.move_alpha = stepper(self.alpha_optimizer, [self.log_alpha])

    def noise_like(self, action: Tensor) -> Tensor:
        return torch.randn_like(action)

    def update(self, batch: Batch) -> None:
        """One step of the temperature, of the critics, of the actor, and of the targets after the critics."""
        alpha = self.log_alpha.detach().exp()
        action, log_prob = squashed(self.actor(*batch.inputs), self.noise_like(batch.action))
        entropy = -log_prob.detach().mean()
        self.move_alpha([self.actions + entropy])

        error, gradients = correct(self.quick, batch.observation, batch.action, self.target(batch, alpha))
        self.move_critics(gradients)

        least, share = ask_least(self.quick, batch.observation, action), 1 / len(action)
        # What autograd would find out by itself: ∂L_π/∂ log π = α / B, ∂L_π/∂ min Q = −1 / B.
        slopes = (alpha * share).expand_as(least), torch.full_like(least, -share)
        self.move_actor(torch.autograd.grad((log_prob, least), self.params, slopes, allow_unused=True))

        with torch.no_grad():
            torch._foreach_lerp_(self.targets, self.frozen, self.tau)  # type: ignore[attr-defined]
            critic_loss = 0.5 * share * error.square().sum()
            self.losses += torch.stack([critic_loss, -alpha * entropy - least.mean(), entropy])

    @torch.no_grad()
    def target(self, batch: Batch, alpha: Tensor) -> Tensor:
        """y (B,)."""
        action, log_prob = squashed(self.actor(*batch.next_inputs), self.noise_like(batch.action))
        value = ask_least(self.slow, batch.following, action) - alpha * log_prob
        return torch.addcmul(batch.reward, batch.discount, value)

    def tensors(self) -> dict[str, Tensor]:
        """What learning changes, besides the actor and the state of the optimizers."""
        named = {f"critic.{place}": tensor for place, tensor in enumerate(self.frozen)}
        named |= {f"target.{place}": tensor for place, tensor in enumerate(self.targets)}
        return {**named, "log_alpha": self.log_alpha.detach()}
