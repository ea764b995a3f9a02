"""AdamP and SGDP: steps that do not make scale-invariant weights grow."""

# torch's optimizers are written with torch._foreach_…, which it does not export and types too narrowly.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.core.components import optimizer
from nnarena.kernels.optimizers.multi import Numbers, Rule
from nnarena.optim import projection
from nnarena.optim.fused import adam_numbers
from nnarena.optim.grouped import (
    Batch,
    Group,
    Grouped,
    Params,
    are_betas,
    copies,
    demand,
    is_positive,
    is_rate,
    is_share,
)
from nnarena.optim.moments import add_scaled, denominators, learning_rate, multiply, step_sizes, update_moments


class AdamP(Grouped):
    """Adam without the part of its update along the weight, where the gradient says that the weight is scale-invariant.

        u = m̂ / (√v̂ + ε), or with Nesterov's look ahead (β₁ m + (1 − β₁) g) / (1 − β₁ᵗ) instead of m̂
        q = u − (u·w)/(w·w) w   if |cos(w, g)| < δ/√dim(w),   else q = u
        θ ← θ − η (q + r λ θ),   r = `wd_ratio` if projected, else 1

    Tensors of more than one dimension only. First every channel (the first dimension) is a vector w; if all of them
    pass the test, each loses its own part. If not, the whole tensor is one vector, and is tested and projected.

    Equal, step by step, to the package `adamp` of its authors, whose ‖w‖ + 1e-8 stands for ‖w‖ here as well (it is
    `eps` there; so it is here).
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "delta": delta,
                "wd_ratio": wd_ratio,
                "nesterov": nesterov,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def check(self, group: Group) -> None:
        _check("AdamP", group)
        demand("AdamP", group, "betas", are_betas, "two numbers ≥ 0 and < 1")

    def keeps(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))

    def rule(self, group: Group) -> Rule:
        nesterov, amsgrad, maximize = group["nesterov"], group["amsgrad"], group["maximize"]
        return Rule(by_gradient=True, view="both", nesterov=nesterov, amsgrad=amsgrad, maximize=maximize)

    def numbers(self, group: Group, device: torch.device) -> Numbers:
        return adam_numbers(group, learning_rate(group, device), group["eps"], group["wd_ratio"])

    def move(self, group: Group, batch: Batch) -> None:
        update_moments(group, batch)
        means = batch.kept["exp_avg"]
        if group["nesterov"]:
            means = torch._foreach_lerp(batch.grads, means, group["betas"][0])
        updates = list(torch._foreach_div(means, denominators(group, batch)))
        fall = learning_rate(group, batch.params[0].device) * group["weight_decay"]
        project_and_decay(group, batch, updates, fall, self.population_dims)
        add_scaled(batch.params, updates, step_sizes(group, batch))


class SGDP(Grouped):
    """Stochastic gradient descent with AdamP's projection.

        b ← μ b + (1 − d) g;   u = b, or with Nesterov's look ahead g + μ b
        q = u − (u·w)/(w·w) w   if |cos(w, g)| < δ/√dim(w),   else q = u
        θ ← θ − η (q + r λ/(1 − μ) θ),   r = `wd_ratio` if projected, else 1

    Equal, step by step, to the package `adamp` of its authors. There, and so here, b itself is projected unless
    `nesterov` is on: what an update lost does not come back with the momentum. The paper's algorithm keeps it in b.
    Also unlike torch's SGD, b starts from zero, so that `dampening` acts on the first gradient too.
    """

    counts = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        eps: float = 1e-8,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "eps": eps,
                "delta": delta,
                "wd_ratio": wd_ratio,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "differentiable": differentiable,
                "capturable": True,  # it counts nothing, so it can always be recorded
            },
        )

    def check(self, group: Group) -> None:
        _check("SGDP", group)
        demand("SGDP", group, "momentum", is_share, "a number ≥ 0 and < 1")
        demand("SGDP", group, "dampening", is_positive, "a finite number ≥ 0")

    def keeps(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def rule(self, group: Group) -> Rule:
        nesterov, maximize = group["nesterov"], group["maximize"]
        return Rule(adam=False, by_gradient=True, view="both", nesterov=nesterov, maximize=maximize)

    def numbers(self, group: Group, device: torch.device) -> Numbers:
        return Numbers(
            lr=learning_rate(group, device),
            first=group["momentum"],
            enter=1 - group["dampening"],
            tiny=group["eps"],
            delta=group["delta"],
            decay=group["weight_decay"] / (1 - group["momentum"]),
            ratio=group["wd_ratio"],
        )

    def move(self, group: Group, batch: Batch) -> None:
        momentum, buffers = group["momentum"], batch.kept["momentum_buffer"]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, batch.grads, alpha=1 - group["dampening"])
        updates = buffers
        if group["nesterov"]:
            updates = list(torch._foreach_add(batch.grads, buffers, alpha=momentum))
        lr = learning_rate(group, batch.params[0].device)
        project_and_decay(group, batch, updates, lr * group["weight_decay"] / (1 - momentum), self.population_dims)
        steps = copies(updates)  # without Nesterov they are the momentum, which is kept
        multiply(steps, -lr)
        torch._foreach_add_(batch.params, steps)


def project_and_decay(
    group: Group, batch: Batch, updates: list[Tensor], fall: float | Tensor, population_dims: int
) -> None:
    """q in the place of u, and w ← w (1 − r ηλ), where they lie; `fall` is ηλ."""
    weights, others = (
        [p for p, is_weight in zip(batch.params, batch.is_weight, strict=True) if is_weight is wanted]
        for wanted in (True, False)
    )
    if weights:
        us = [u for u, is_weight in zip(updates, batch.is_weight, strict=True) if is_weight]
        gs = [g for g, is_weight in zip(batch.grads, batch.is_weight, strict=True) if is_weight]
        masks = _project(group, weights, gs, us, population_dims)
        factors = list(torch._foreach_mul(masks, group["wd_ratio"] - 1))
        torch._foreach_add_(factors, 1.0)
        multiply(factors, -fall)
        torch._foreach_add_(factors, 1.0)
        multiply(weights, factors)
    if others:
        multiply(others, 1 - fall)


def _project(group: Group, ws: list[Tensor], gs: list[Tensor], us: list[Tensor], members: int) -> list[Tensor]:
    """Project in place; returns 1 for every tensor (of every member) that was, else 0."""
    channel, layer = [members + 1] * len(ws), [members] * len(ws)
    seen = us
    if group["differentiable"]:  # what a gradient is taken of must not change any more
        ws, seen = copies(ws), copies(us)
    gw, uw = projection.dots(gs, ws, channel), projection.dots(seen, ws, channel)
    norms_g, norms_w = projection.norms(gs, channel), projection.norms(ws, channel)
    masks, shares = [], []
    for kept in (channel, layer):
        if kept is layer:  # sums of the channels' sums
            gw, uw = projection.sums(gw, layer), projection.sums(uw, layer)
            norms_g, norms_w = projection.norms(norms_g, layer), projection.norms(norms_w, layer)
        limits = projection.limits(ws, kept, group["delta"])
        small = projection.masks_of_small_cosines(gw, norms_g, norms_w, limits)
        masks.append([mask.amin(tuple(range(members, mask.ndim)), keepdim=True) for mask in small])  # all channels
        if kept is layer:  # only what did not pass by channels
            masks[1] = list(torch._foreach_mul(masks[1], torch._foreach_add(torch._foreach_neg(masks[0]), 1.0)))
        shares.append(projection.shares(masks[-1], uw, norms_w, group["eps"]))
    projection.subtract(us, ws, list(torch._foreach_add(*shares)))
    return list(torch._foreach_add(*masks))


def _check(owner: str, group: Group) -> None:
    demand(owner, group, "lr", is_rate, "a finite number ≥ 0, or a tensor of one number")
    for name in ("eps", "weight_decay", "delta", "wd_ratio"):
        demand(owner, group, name, is_positive, "a finite number ≥ 0")


@optimizer("adamp", reference="Heo et al. 2021, AdamP: slowing down the slowdown for momentum optimizers, ICLR")
def adamp(
    params: Params,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    delta: float = 0.1,
    wd_ratio: float = 0.1,
    nesterov: bool = False,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam that does not step along weights whose gradient is orthogonal to them.

        q = u − (u·w)/(w·w) w  if |cos(w, g)| < δ/√dim(w),  else q = u,   u = m̂ / (√v̂ + ε)
        θ ← θ − η (q + r λ θ)

    Options:
        lr: learning rate η
        betas: decay rates β₁ and β₂ of the two running means
        eps: ε in the denominator, and beside the norm of a weight
        weight_decay: λ, the share of θ that is taken away per unit of η
        delta: δ, how nearly orthogonal; 0 never projects
        wd_ratio: r, how much of λ is left where an update was projected
        nesterov: look ahead along the momentum
        amsgrad: never let v̂ fall
    """
    return AdamP(params, lr, betas, eps, weight_decay, delta, wd_ratio, nesterov, amsgrad=amsgrad)


@optimizer("sgdp", reference="Heo et al. 2021, AdamP: slowing down the slowdown for momentum optimizers, ICLR")
def sgdp(
    params: Params,
    *,
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    eps: float = 1e-8,
    delta: float = 0.1,
    wd_ratio: float = 0.1,
) -> Optimizer:
    """Stochastic gradient descent that does not step along weights whose gradient is orthogonal to them.

        b ← μ b + (1 − d) g;   q = b − (b·w)/(w·w) w  if |cos(w, g)| < δ/√dim(w),  else q = b
        θ ← θ − η (q + r λ/(1 − μ) θ)

    Options:
        lr: learning rate η
        momentum: μ, the share of the last step that is kept
        dampening: d, how much less of a new gradient enters the momentum
        weight_decay: λ, the share of θ that is taken away per unit of η/(1 − μ)
        nesterov: look ahead along the momentum
        eps: added to the norm of a weight
        delta: δ, how nearly orthogonal; 0 never projects
        wd_ratio: r, how much of λ is left where an update was projected
    """
    return SGDP(params, lr, momentum, dampening, weight_decay, nesterov, eps, delta, wd_ratio)
