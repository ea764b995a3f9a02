"""torch's own optimizers, with the options that matter and torch's defaults.

θ parameters, g gradient, η the learning rate `lr`. The published arena used Adam with ε = 1e-7: `adam[eps=1e-7]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from nnarena.core.components import optimizer

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]]


@optimizer("sgd", reference="Robbins and Monro 1951; momentum: Polyak 1964; Nesterov 1983")
def sgd(
    params: Params,
    *,
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> Optimizer:
    """Stochastic gradient descent, with momentum if asked for.

        v ← μ v + (1 − d) g;   θ ← θ − η v;   with Nesterov's look ahead θ ← θ − η (g + μ v)

    v begins as the first g. With all samples in one step, `sgd[full_batch=true]`, it is gradient descent; with one
    sample a step, `--batch-size 1`, stochastic gradient descent in the narrow sense; between them lie mini-batches.

    Options:
        lr: learning rate η
        momentum: μ, the share of the last step that is kept
        dampening: d, how much less of a new gradient enters the momentum
        weight_decay: λ, adds λ θ to the gradient
        nesterov: look ahead along the momentum
    """
    return torch.optim.SGD(params, lr, momentum, dampening, weight_decay, nesterov)


@optimizer("adam", reference="Kingma and Ba 2015, Adam: a method for stochastic optimization, ICLR")
def adam(
    params: Params,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam: steps scaled by running means of the gradient and of its square.

        m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²
        θ ← θ − η m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)

    Where a textbook leaves the hats out, its first steps are other ones.

    Options:
        lr: learning rate η
        betas: decay rates β₁ and β₂ of the two running means
        eps: ε in the denominator; the published arena has 1e-7
        weight_decay: λ, adds λ θ to the gradient
        amsgrad: never let v̂ fall (Reddi et al. 2018)
    """
    return torch.optim.Adam(params, lr, betas, eps, weight_decay, amsgrad)


@optimizer("adamw", reference="Loshchilov and Hutter 2019, Decoupled weight decay regularization, ICLR")
def adamw(
    params: Params,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam with weight decay apart from the gradient.

        θ ← θ − η λ θ, then Adam's step

    Options:
        lr: learning rate η
        betas: decay rates β₁ and β₂ of the two running means
        eps: ε in the denominator
        weight_decay: λ, the share of θ that is taken away per unit of η
        amsgrad: never let v̂ fall
    """
    return torch.optim.AdamW(params, lr, betas, eps, weight_decay, amsgrad)


@optimizer("nadam", reference="Dozat 2016, Incorporating Nesterov momentum into Adam, ICLR workshop")
def nadam(
    params: Params,
    *,
    lr: float = 2e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
) -> Optimizer:
    """Adam that looks ahead along its momentum, as Nesterov's method does.

        θ ← θ − η (μ_{t+1} m̂ + (1 − μ_t) ĝ) / (√v̂ + ε),   μ_t = β₁ (1 − ½ · 0.96^(t ψ))
        m̂ = m / (1 − μ₁ ⋯ μ_{t+1}),   ĝ = g / (1 − μ₁ ⋯ μ_t),   v̂ = v / (1 − β₂ᵗ)

    with Adam's m and v.

    Options:
        lr: learning rate η
        betas: decay rates β₁ and β₂ of the two running means
        eps: ε in the denominator
        weight_decay: λ, adds λ θ to the gradient
        momentum_decay: ψ, how fast the momentum μ_t reaches β₁
    """
    return torch.optim.NAdam(params, lr, betas, eps, weight_decay, momentum_decay)


@optimizer("rmsprop", reference="Tieleman and Hinton 2012, lecture 6.5, Neural networks for machine learning")
def rmsprop(
    params: Params,
    *,
    lr: float = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
) -> Optimizer:
    """Steps divided by a running root mean square of the gradient.

        v ← α v + (1 − α) g²;   θ ← θ − η g / (√v + ε)

    Options:
        lr: learning rate η
        alpha: decay rate α of the running mean square
        eps: ε in the denominator
        weight_decay: λ, adds λ θ to the gradient
        momentum: the share of the last step that is kept
        centered: divide by the standard deviation instead of the root mean square
    """
    return torch.optim.RMSprop(params, lr, alpha, eps, weight_decay, momentum, centered)


@optimizer("adagrad", reference="Duchi et al. 2011, Adaptive subgradient methods, JMLR 12")
def adagrad(
    params: Params,
    *,
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
) -> Optimizer:
    """Steps divided by the root of all squared gradients so far.

        v ← v + g²;   θ ← θ − η g / (√v + ε)

    Some textbooks have ε under the root.

    Options:
        lr: learning rate η
        lr_decay: η is divided by 1 + (t − 1) · lr_decay
        weight_decay: λ, adds λ θ to the gradient
        initial_accumulator_value: v at the start
        eps: ε in the denominator
    """
    return torch.optim.Adagrad(params, lr, lr_decay, weight_decay, initial_accumulator_value, eps)


@optimizer("adadelta", reference="Zeiler 2012, ADADELTA: an adaptive learning rate method, arXiv:1212.5701")
def adadelta(
    params: Params, *, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0
) -> Optimizer:
    """Steps in the units of the parameters: the ratio of two running root mean squares.

        v ← ρ v + (1 − ρ) g²;   Δ = g √(u + ε) / √(v + ε);   u ← ρ u + (1 − ρ) Δ²;   θ ← θ − η Δ

    Options:
        lr: η, a factor on the step, 1 in the paper
        rho: decay rate ρ of both running means
        eps: ε under both roots
        weight_decay: λ, adds λ θ to the gradient
    """
    return torch.optim.Adadelta(params, lr, rho, eps, weight_decay)
