"""Two critics as one: networks inputs → H → H → 1, side by side in the first dimension of every tensor.

B samples, F features of an observation, A actions, H hidden units; x is an observation and an action.

    h₁ = relu(W₁ x + b₁),   h₂ = relu(W₂ h₁ + b₂),   Q = W₃ h₂ + b₃

On a CPU, a third of an update went into memory that is written once and thrown away. So the gradient is written out
here, in place where that is possible, and never computed for weights that nobody moves. `ask_plainly` says the same
without a word of this, for reading and for tests.
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


def ask_critics(critics: Sequence[Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """Q₁ and Q₂ (2, B) of observations (B, F) and actions (B, A). Gradients flow to critics and actions."""
    return _Ask.apply(observation, action, *critics)  # type: ignore[no-any-return]


def ask_plainly(critics: Sequence[Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """The same, one critic after the other."""
    x = torch.cat([observation, action], 1)
    values = []
    for W1, b1, W2, b2, w3, b3 in zip(*critics, strict=True):
        hidden = torch.relu(torch.relu(x @ W1.T + b1) @ W2.T + b2)
        values.append(hidden @ w3 + b3)
    return torch.stack(values)


def ask_least(critics: Sequence[Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """min_i Q_i (B,), of critics that nobody moves: a gradient flows to the actions alone."""
    if action.requires_grad and action.device.type == "cpu":
        return _Least.apply(observation, action, *critics)  # type: ignore[no-any-return]
    if action.requires_grad:
        return torch.minimum(*ask_critics(critics, observation, action))
    _, h2 = _hidden(torch.cat([observation, action], 1), *critics[:4])
    return torch.minimum(*_values(h2, *critics[4:]))


class _Least(torch.autograd.Function):
    """Of every sample only the lower critic has a gradient: on a CPU, which minds no odd sizes, that is half the work.

    (Where both are equal the first counts.)
    """

    @staticmethod
    def forward(ctx: Any, observation: Tensor, action: Tensor, *critics: Tensor) -> Tensor:
        W1, _, W2, _, W3, _ = critics
        h1, h2 = _hidden(torch.cat([observation, action], 1), *critics[:4])
        first, second = _values(h2, W3, critics[5])
        ctx.save_for_backward(h1, h2, first <= second, W1, W2, W3)
        ctx.actions = action.shape[1]
        return torch.minimum(first, second)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        h1, h2, is_first, W1, W2, W3 = ctx.saved_tensors
        d_action = g.new_empty(len(g), ctx.actions)
        for i, mine in enumerate((is_first, ~is_first)):
            rows = mine.nonzero()[:, 0]
            d2 = h2[i].index_select(0, rows).sign_().mul_(g.index_select(0, rows)[:, None]).mul_(W3[i])
            seen = h1.chunk(CRITICS, 1)[i].index_select(0, rows)
            d1 = (d2 @ W2[i]).mul_(seen.sign_())
            d_action.index_copy_(0, rows, (W1[i][:, -ctx.actions :].t().contiguous() @ d1.t()).t())
        return None, d_action, None, None, None, None, None, None


class _Ask(torch.autograd.Function):
    """Both critics' first layers are one product, (B, 2H); the second is one a critic.

    The backward pass writes over what the forward pass kept, so it can be taken once. Products of a long and a short
    side are taken with the short side first, which is twice as fast.
    """

    @staticmethod
    def forward(ctx: Any, observation: Tensor, action: Tensor, *critics: Tensor) -> Tensor:
        W1, b1, W2, b2, W3, b3 = critics
        x = torch.cat([observation, action], 1)
        h1, h2 = _hidden(x, W1, b1, W2, b2)
        ctx.save_for_backward(x, h1, h2, W1, W2, W3)
        ctx.actions = action.shape[1]
        return torch.stack(_values(h2, W3, b3))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x, h1, h2, W1, W2, W3 = ctx.saved_tensors
        _, moves_action, moves_critics, *_ = ctx.needs_input_grad
        dW3 = torch.stack([torch.mv(h2[i].t(), g[i]) for i in range(CRITICS)]) if moves_critics else None
        d2 = h2.sign_().mul_(g[:, :, None]).mul_(W3[:, None])  # where h2 lay
        d1 = torch.empty_like(h1)
        for i, columns in enumerate(d1.chunk(CRITICS, 1)):
            torch.mm(d2[i], W2[i], out=columns)
        torch.ops.aten.threshold_backward.grad_input(d1, h1, 0.0, grad_input=d1)
        d_action = None
        if moves_action:
            columns = W1.flatten(0, 1)[:, -ctx.actions :]
            d_action = (columns.t().contiguous() @ d1.t()).t()
        if not moves_critics:
            return None, d_action, None, None, None, None, None, None
        dW1 = (x.t() @ d1).t().contiguous().view_as(W1)
        dW2 = torch.bmm(d2.mT, _by_critic(h1))
        return None, d_action, dW1, d1.sum(0).view(CRITICS, -1), dW2, d2.sum(1), dW3, g.sum(1)


def _hidden(x: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    """h₁ (B, 2H) and h₂ (2, B, H)."""
    h1 = torch.addmm(b1.flatten(), x, W1.flatten(0, 1).t()).relu_()
    return h1, torch.bmm(_by_critic(h1), W2.mT).add_(b2[:, None]).relu_()


def _values(h2: Tensor, W3: Tensor, b3: Tensor) -> list[Tensor]:
    return [torch.addmv(b3[i], h2[i], W3[i]) for i in range(CRITICS)]


def _by_critic(hidden: Tensor) -> Tensor:
    """(B, 2H) as (2, B, H), without moving a number."""
    return hidden.unflatten(1, (CRITICS, -1)).transpose(0, 1)
