"""Gradient descent with momentum, and Nesterov's, under names of their own: torch's SGD with the usual share of 0.9.

θ parameters, g gradient, η the learning rate `lr`.
"""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from nnarena.core.components import optimizer
from nnarena.optim.from_torch import Params


@optimizer("momentum", reference="Polyak 1964, Some methods of speeding up the convergence of iteration methods")
def momentum(params: Params, *, lr: float = 1e-2, momentum: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """Gradient descent that keeps a part of its last step, as a heavy ball does.

        v ← μ v + g;   θ ← θ − η v

    Textbooks put η into v (v ← μ v + η g; θ ← θ − v): the same path as long as η stays.

    Options:
        lr: learning rate η
        momentum: μ, the share of the last step that is kept
        weight_decay: λ, adds λ θ to the gradient
    """
    return torch.optim.SGD(params, lr, momentum, weight_decay=weight_decay)


@optimizer(
    "nesterov", reference="Nesterov 1983; in this form Sutskever et al. 2013, On the importance of momentum, ICML"
)
def nesterov(params: Params, *, lr: float = 1e-2, momentum: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """Gradient descent with momentum that takes its gradient where the momentum leads to.

        v ← μ v + g;   θ ← θ − η (g + μ v)

    Textbooks look ahead first (v ← μ v + η g(θ − μ v); θ ← θ − v). θ here is the point that they look ahead to: the
    same path as long as η stays, and the gradient is taken where the parameters are.

    Options:
        lr: learning rate η
        momentum: μ, the share of the last step that is kept
        weight_decay: λ, adds λ θ to the gradient
    """
    return torch.optim.SGD(params, lr, momentum, weight_decay=weight_decay, nesterov=True)
