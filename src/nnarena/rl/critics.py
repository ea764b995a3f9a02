"""Two critics as one: networks inputs → H → H → 1, side by side in the first dimension of every tensor.

B samples, F features of an observation, A actions, H hidden units; x is an observation and an action.

    h₁ = relu(W₁ x + b₁),   h₂ = relu(W₂ h₁ + b₂),   Q = W₃ h₂ + b₃

On a CPU, a third of an update went into memory that is written once and thrown away, and into asking for views. So
views are taken once (`Critics`), and gradients are written out, in place where that is possible, and never computed for
weights that nobody moves. `ask_plainly` says the same without a word of this, for reading and for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CRITICS = 2


def make_critics(inputs: int, hidden: int, device: torch.device | None = None) -> list[Tensor]:
    """W₁ (2, H, F + A), b₁ (2, H), W₂ (2, H, H), b₂ (2, H), W₃ (2, H), b₃ (2,).

    Start values are uniform in ±1/√inputs of each layer, torch's usual.
    """
    tensors = []
    for rows, shape in ((inputs, (hidden, inputs)), (hidden, (hidden, hidden)), (hidden, (hidden,))):
        for part in (shape, shape[:-1]):
            tensors.append(torch.empty(CRITICS, *part).uniform_(-(rows**-0.5), rows**-0.5).to(device).requires_grad_())
    return tensors


def ask_plainly(critics: Sequence[Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """The same, one critic after the other."""
    x = torch.cat([observation, action], 1)
    values = []
    for W1, b1, W2, b2, w3, b3 in zip(*critics, strict=True):
        hidden = torch.relu(torch.relu(x @ W1.T + b1) @ W2.T + b2)
        values.append(hidden @ w3 + b3)
    return torch.stack(values)


class Critics:
    """The tensors of two critics as products want them. Views of one memory: they stay right when it is written to."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        W1, b1, W2, b2, W3, b3 = (tensor.detach() for tensor in tensors)
        self.W1, self.b1 = W1.flatten(0, 1), b1.flatten()
        self.W2, self.b2 = W2, b2[:, None]
        self.W3, self.b3 = W3, b3
        self.W1_t, self.W2_t = self.W1.t(), W2.mT
        self.each_W1, self.each_W2, self.each_W3, self.each_b3 = (part.unbind() for part in (W1, W2, W3, b3))

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """h₁ (B, 2H) and h₂ (2, B, H). Both critics' first layers are one product; the second is one a critic."""
        h1 = torch.addmm(self.b1, x, self.W1_t).relu_()
        return h1, torch.bmm(_by_critic(h1), self.W2_t).add_(self.b2).relu_()

    def values(self, h2: Tensor) -> list[Tensor]:
        """Q₁ and Q₂, (B,) each."""
        return [torch.addmv(b, h, w) for b, h, w in zip(self.each_b3, h2.unbind(), self.each_W3, strict=True)]


def ask_least(critics: Critics, observation: Tensor, action: Tensor) -> Tensor:
    """min_i Q_i (B,), of critics that nobody moves: a gradient flows to the actions alone."""
    return _Least.apply(observation, action, critics)  # type: ignore[no-any-return]


@torch.no_grad()
def correct(critics: Critics, observation: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The error Q − y (2, B) towards targets y (B,), and the gradients of L_Q = ½ Σ_i mean (Q_i − y)².

    ∂L_Q/∂Q = (Q − y) / B, and from there back through both layers.
    """
    x = torch.cat([observation, action], 1)
    h1, h2 = critics.hidden(x)
    error = torch.stack(critics.values(h2)).sub_(target)
    g = error / len(target)
    dW3 = torch.bmm(g[:, None], h2)[:, 0]
    d2, d1 = _back(critics, h1, h2, g)
    dW1 = (x.t() @ d1).t().contiguous().view(CRITICS, -1, x.shape[1])
    dW2 = torch.bmm(d2.mT, _by_critic(h1))
    return error, [dW1, d1.sum(0).view(CRITICS, -1), dW2, d2.sum(1), dW3, g.sum(1)]


class _Least(torch.autograd.Function):
    """Of every sample only the lower critic has a gradient. (Where both are equal the first counts.)"""

    @staticmethod
    def forward(ctx: Any, observation: Tensor, action: Tensor, critics: Critics) -> Tensor:
        h1, h2 = critics.hidden(torch.cat([observation, action], 1))
        first, second = critics.values(h2)
        if ctx.needs_input_grad[1]:
            ctx.save_for_backward(h1, h2, first <= second)
            ctx.critics, ctx.actions = critics, action.shape[1]
        return torch.minimum(first, second)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        (g,) = gradients
        h1, h2, is_first = ctx.saved_tensors
        back = _through_one if g.device.type == "cpu" else _through_both
        return None, back(ctx.critics, h1, h2, is_first, g, ctx.actions), None


def _through_one(critics: Critics, h1: Tensor, h2: Tensor, is_first: Tensor, g: Tensor, actions: int) -> Tensor:
    """From gradients of the lower Q (B,) to those of the actions (B, A): every critic for its own samples.

    On a CPU, which minds no odd sizes, that is half the work.
    """
    d_action = g.new_empty(len(g), actions)
    for i, mine in enumerate((is_first, ~is_first)):
        rows = mine.nonzero()[:, 0]
        d2 = h2[i].index_select(0, rows).sign_().mul_(g.index_select(0, rows)[:, None]).mul_(critics.each_W3[i])
        seen = h1.chunk(CRITICS, 1)[i].index_select(0, rows)
        d1 = (d2 @ critics.each_W2[i]).mul_(seen.sign_())
        d_action.index_copy_(0, rows, _short_first(critics.each_W1[i][:, -actions:], d1))
    return d_action


def _through_both(critics: Critics, h1: Tensor, h2: Tensor, is_first: Tensor, g: Tensor, actions: int) -> Tensor:
    """The same without asking how many samples are whose: both critics for all, with zeros."""
    _, d1 = _back(critics, h1, h2, torch.stack([g * is_first, g * ~is_first]))
    return _short_first(critics.W1[:, -actions:], d1)


def _back(critics: Critics, h1: Tensor, h2: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """From gradients of Q (2, B) to those before both relus, (2, B, H) and (B, 2H). The first lies where h₂ lay."""
    d2 = h2.sign_().mul_(g[:, :, None]).mul_(critics.W3[:, None])
    d1 = torch.empty_like(h1)
    for d2_i, W2, columns in zip(d2, critics.each_W2, d1.chunk(CRITICS, 1), strict=True):
        torch.mm(d2_i, W2, out=columns)
    return d2, torch.ops.aten.threshold_backward.grad_input(d1, h1, 0.0, grad_input=d1)


def _short_first(W: Tensor, d: Tensor) -> Tensor:
    """d W, (B, H) and (H, A), with the short side first: so it is twice as fast."""
    return (W.t().contiguous() @ d.t()).t()


def _by_critic(hidden: Tensor) -> Tensor:
    """(B, 2H) as (2, B, H), without moving a number."""
    return hidden.unflatten(1, (CRITICS, -1)).transpose(0, 1)
