"""A norm and a softmax whose gradients are written with their results.

Whoever goes back through a step needs to know nothing of it then but what it gave, and that lies in memory where the
next product of matrices reads it. Both have second derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scaled(z: Tensor, epsilon: float) -> Tensor:
    """n = r z with r = 1 / √(mean z² + ε): the layer norm of what has no mean.

    ∂z = r (∂n − n · mean(n ∂n))
    """
    return _Scaled.apply(z, epsilon)[0]  # type: ignore[index]


def shares(first: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax p of a number (…, 1) and n others (…, n), in these two parts.

    ∂a = p (∂p − Σ p ∂p)
    """
    return _Shares.apply(first, others)  # type: ignore[return-value]


class _Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        r = ((z * z).mean(-1, keepdim=True) + epsilon).rsqrt()
        return r * z, r

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, pull: Tensor | None, pull_r: Tensor | None) -> tuple[Tensor | None, None]:  # type: ignore[override]
        n, r = ctx.saved_tensors
        parts = []
        if pull is not None:
            parts.append(r * (pull - n * (n * pull).mean(-1, keepdim=True)))
        if pull_r is not None:  # r is wanted by second derivatives only
            parts.append(-n * r**2 * pull_r / n.shape[-1])
        return sum(parts[1:], *parts[:1]) if parts else None, None


class _Shares(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(first: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        most = torch.maximum(first, others.amax(-1, keepdim=True))
        first, others = (first - most).exp(), (others - most).exp()
        total = first + others.sum(-1, keepdim=True)
        return first / total, others / total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, pull: Tensor, pull_others: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        first, others = ctx.saved_tensors
        mean = first * pull + (others * pull_others).sum(-1, keepdim=True)
        return first * (pull - mean), others * (pull_others - mean)
