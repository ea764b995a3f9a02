"""What a writer is told of the target while it learns.

    teacher     the right tokens before each step
    scheduled   each of them with a probability that falls as training goes on, its own best guess instead
    free        its own best guesses only
    professor   the right tokens, and a discriminator tells the writer's dynamics from those when it writes alone

B batch, L steps of the target, H width of the writer's outputs, V tokens.

Reference: teacher forcing, Williams and Zipser 1989; scheduled sampling, Bengio et al. 2015; professor forcing, Lamb et
al. 2016.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from nnarena.core.noise import uniform
from nnarena.nn.bidirectional import Bidirectional
from nnarena.nn.gru import GRU
from nnarena.nn.init import dense

LEFT = 0.01  # what an exponential annealing leaves after its steps
SURE, UNSURE = 0.99, 0.75  # of the discriminator: it rests above the first, and is not listened to below the second


def share_of_truth(kind: str, steps: Tensor, over: int) -> Tensor:
    """The probability ε of the right token after i steps of training.

        linear            ε = max(0, 1 − i / over)
        exponential       ε = k^i,  k so that 1 % is left when i = over
        inverse_sigmoid   ε = k / (k + exp(i / k)),  k so that half is left when i = over / 2

    These are the three of Bengio et al., who count mini-batches as here and not epochs. They leave k to the reader, and
    the linear one is max(ε₀, k − c i); here `over` says all of it, with ε₀ = 0 and k = 1 for the linear one.
    """
    i = steps.to(torch.float32)
    if kind == "linear":
        return (1 - i / over).clamp(min=0)
    if kind == "exponential":
        return LEFT ** (i / over)
    k = inverse_sigmoid_rate(over)
    return torch.sigmoid(math.log(k) - i / k)


def inverse_sigmoid_rate(over: int) -> float:
    """The k ≥ 1 with k ln k = over / 2, by Newton's method."""
    k = 1 + over / 2
    for _ in range(50):
        k -= (k * math.log(k) - over / 2) / (1 + math.log(k))
    return k


class Draws(nn.Module):
    """Random numbers for every step of training: a function of a seed and a counter that are part of the state.

    So a trial that continues draws what it would have drawn, seeds that train as one draw each their own, and nothing
    has to be asked of the host.
    """

    seed: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: int, count: int) -> Tensor:
        """Uniform numbers (batch, count); the next call gives others."""
        numbers = uniform(self.seed * 2**32 + self.steps, torch.arange(batch, device=self.steps.device), count)
        self.steps = self.steps + 1
        return numbers


def sampled(logits: Tensor, noise: Tensor) -> Tensor:
    """A token (B,) from the distribution (B, V), by as much noise (the Gumbel-max trick)."""
    return (logits - torch.log(-torch.log(noise))).argmax(-1)


class Discriminator(nn.Module):
    """Was this behaviour told the right tokens? A bidirectional GRU over it, and a dense layer on both ends.

        D(b) = w · (h_L, g_1) + c,   b_l = (the writer's output, its softmax) at step l

    (B, L, H + V) → logits (B,). Lamb et al. put three rectified layers on the states of every step; here it is one
    dense layer on the last state of each direction, which keeps the judge smaller than the writer.
    """

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.layer = Bidirectional(GRU(features, units))
        self.head = dense(2 * units, 1)

    def forward(self, behaviour: Tensor) -> Tensor:
        return self.head(self.layer.last(self.layer(behaviour)[0])).squeeze(-1)

    def contest(self, told: Tensor, alone: Tensor) -> Tensor:
        """What is lowered besides the cross entropy, of behaviours that were told the target and that were not.

            discriminator:   −log σ(D(told)) − log(1 − σ(D(alone)))     while it is right in less than 99 %
            writer:          −log σ(D(alone))                           while it is right in more than 75 %

        Each has the gradient of its own line only. (The optional second line of Lamb et al. for the writer, which
        makes what is told look as if alone, is left out.)
        """
        yes, no = self(told.detach()), self(alone.detach())
        own = F.softplus(-yes).mean() + F.softplus(no).mean()
        frozen = {name: parameter.detach() for name, parameter in self.named_parameters()}
        fooled = F.softplus(-functional_call(self, frozen, (alone,))).mean()
        right = ((yes > 0).to(own.dtype).mean() + (no < 0).to(own.dtype).mean()) / 2
        return (right < SURE) * own + (right > UNSURE) * fooled
