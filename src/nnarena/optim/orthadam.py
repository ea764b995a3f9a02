"""OrthAdam: Adam whose updates are made orthogonal to the weights where they nearly are."""

# torch's optimizers are written with torch._foreach_…, which it does not export and types too narrowly.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.core.components import optimizer
from nnarena.kernels.optimizers.multi import Numbers, Rule
from nnarena.optim import projection
from nnarena.optim.fused import adam_numbers
from nnarena.optim.grouped import Batch, Group, Grouped, Params, are_betas, copies, demand, is_positive, is_rate
from nnarena.optim.moments import Factors, add_scaled, denominators, learning_rate, multiply, step_sizes, update_moments

TINY = 1e-18  # added to ‖w‖, so that a weight of zeros leaves its update alone
CHOICES = {
    "threshold": ("dimension", "constant"),
    "eps_place": ("inside", "outside"),
    "decay": ("decoupled", "released"),
    "view": ("tensor", "channel"),
    "project": ("weights", "all"),
}


class OrthAdam(Grouped):
    """Adam whose update loses its part along the weight where the two are nearly orthogonal.

        m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²;   u = m̂ / √(v̂ + ε)
        q = u − (u·w)/(w·w) w   if |cos(w, u)| < δ/√dim(w),   else q = u
        θ ← θ − η (q + λ θ)

    Orthogonal steps do not change the norm of a scale-invariant weight to first order; Adam's momentum makes it grow,
    and with it the effective learning rate falls.

    What differs from AdamP (Heo et al. 2021): the cosine is that of the update and not of the gradient, so what is
    tested is what is changed; a tensor is one vector, or each channel one by itself (`view`), and not channels first
    and then the tensor; and weight decay is the same whether an update was projected or not.

    The printed test is seldom met: momentum turns u away from the right angle that g has with a scale-invariant w, and
    Adam's division turns it further. At δ = 0.1 such weights grow nearly as fast as with Adam, while
    threshold="constant" with δ = 0.3 all but stops them, as AdamP does.

    What differs from Algorithm 8 of the thesis: it prints β₂ m + (1 − β₁) g for the first moment, a slip, as the code
    that was released with it shows. δ is not printed; 0.1 is AdamP's. By default tensors of more than one dimension
    are projected: biases and the scales of norms are not scale-invariant.

    The released code differs from the printed algorithm. All of it, with its ε of 1e-8 and its decay of 1e-4, is

        OrthAdam(params, threshold="constant", eps_place="outside", decay="released", project="all")

    where decay="released" multiplies θᵢ by 1 − η λ θᵢ/‖θ‖ when the update was projected, and by 1 − η λ when not: a
    defect, for it shrinks positive numbers and lets negative ones grow. It is here to check recorded results.

    A tensor `lr` is taken as it is, and never looked at. With `differentiable` gradients flow through a step, also to
    `lr`; the parameters must not be leaves then.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-4,
        delta: float = 0.1,
        *,
        threshold: Literal["dimension", "constant"] = "dimension",
        eps_place: Literal["inside", "outside"] = "inside",
        decay: Literal["decoupled", "released"] = "decoupled",
        view: Literal["tensor", "channel"] = "tensor",
        project: Literal["weights", "all"] = "weights",
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
                "threshold": threshold,
                "eps_place": eps_place,
                "decay": decay,
                "view": view,
                "project": project,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "fused": fused,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def check(self, group: Group) -> None:
        demand("OrthAdam", group, "lr", is_rate, "a finite number ≥ 0, or a tensor of one number")
        demand("OrthAdam", group, "betas", are_betas, "two numbers ≥ 0 and < 1")
        for name in ("eps", "weight_decay", "delta"):
            demand("OrthAdam", group, name, is_positive, "a finite number ≥ 0")
        for name, choices in CHOICES.items():
            demand("OrthAdam", group, name, choices.__contains__, " or ".join(map(repr, choices)))

    def keeps(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))

    def projects(self, group: Group, is_weight: bool) -> bool:
        return is_weight or group["project"] == "all"

    def rule(self, group: Group) -> Rule:
        return Rule(
            view=group["view"],
            by_dimension=group["threshold"] == "dimension",
            eps_inside=group["eps_place"] == "inside",
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
            curved=group["decay"] == "released",
        )

    def numbers(self, group: Group, device: torch.device) -> Numbers:
        return adam_numbers(group, learning_rate(group, device), TINY)

    def move(self, group: Group, batch: Batch) -> None:
        update_moments(group, batch)
        denoms = denominators(group, batch, eps_inside=group["eps_place"] == "inside")
        sizes = step_sizes(group, batch)
        fall = learning_rate(group, batch.params[0].device) * group["weight_decay"]
        projects = [group["delta"] > 0 and self.projects(group, weight) for weight in batch.is_weight]
        for chosen in (True, False):
            places = [place for place, projected in enumerate(projects) if projected is chosen]
            if places:
                lists = (batch.params, batch.kept["exp_avg"], denoms, sizes)
                ps, ms, ds, ss = (_at(places, items) for items in lists)
                if chosen:
                    is_weight = _at(places, batch.is_weight)
                    self._orthogonal_step(group, ps, list(torch._foreach_div(ms, ds)), ss, fall, is_weight)
                else:
                    _plain_step(ps, ms, ds, ss, fall)

    def _orthogonal_step(
        self,
        group: Group,
        ps: list[Tensor],
        us: list[Tensor],
        sizes: Factors,
        fall: float | Tensor,
        is_weight: list[bool],
    ) -> None:
        """u is m/√(v̂ + ε) here, for no cosine changes with its length; the step size holds the 1/(1 − β₁ᵗ)."""
        ws, seen = ps, us
        if group["differentiable"]:  # what a gradient is taken of must not change any more
            ws, seen = copies(ps), copies(us)
        by_channel = group["view"] == "channel"
        kept = [self.population_dims + (by_channel and weight) for weight in is_weight]
        norms_w, products = projection.norms(ws, kept), projection.dots(seen, ws, kept)
        constant = group["threshold"] == "constant"
        limits = [group["delta"]] * len(ws) if constant else projection.limits(ws, kept, group["delta"])
        masks = projection.masks_of_small_cosines(products, projection.norms(seen, kept), norms_w, limits)
        projection.subtract(us, ws, projection.shares(masks, products, norms_w, TINY))
        if group["decay"] == "decoupled":
            multiply(ps, 1 - fall)
        else:
            _released_decay(ps, ws, masks, norms_w, fall)
        add_scaled(ps, us, sizes)


def _at(places: list[int], items: list[Any]) -> list[Any]:
    return [items[place] for place in places]


def _plain_step(ps: list[Tensor], ms: list[Tensor], denoms: list[Tensor], sizes: Factors, fall: float | Tensor) -> None:
    """AdamW's step, operation by operation."""
    multiply(ps, 1 - fall)
    if isinstance(sizes[0], Tensor):
        add_scaled(ps, list(torch._foreach_div(ms, denoms)), sizes)
    else:
        torch._foreach_addcdiv_(ps, ms, denoms, sizes)


def _released_decay(
    ps: list[Tensor], ws: list[Tensor], masks: list[Tensor], norms_w: list[Tensor], fall: float | Tensor
) -> None:
    """w ← w (1 − ηλ r), where r = w/‖w‖, number by number, if the update was projected, else 1."""
    directions = torch._foreach_div(masks, torch._foreach_add(norms_w, TINY))
    ratios = list(torch._foreach_mul(ws, directions))
    torch._foreach_sub_(ratios, masks)
    torch._foreach_add_(ratios, 1.0)
    multiply(ratios, -fall)
    torch._foreach_add_(ratios, 1.0)
    multiply(ps, ratios)


@optimizer(
    "orthadam", reference="Algorithm 8 of its thesis (code: frederikgramkortegaard/kish); AdamP: Heo et al. 2021, ICLR"
)
def orthadam(
    params: Params,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    delta: float = 0.1,
    threshold: Literal["dimension", "constant"] = "dimension",
    eps_place: Literal["inside", "outside"] = "inside",
    decay: Literal["decoupled", "released"] = "decoupled",
    view: Literal["tensor", "channel"] = "tensor",
    project: Literal["weights", "all"] = "weights",
    amsgrad: bool = False,
) -> Optimizer:
    """Adam whose update loses its part along the weight where the two are nearly orthogonal.

        u = m̂ / √(v̂ + ε);   q = u − (u·w)/(w·w) w  if |cos(w, u)| < δ/√dim(w),  else q = u
        θ ← θ − η (q + λ θ)

    Options:
        lr: learning rate η
        betas: decay rates β₁ and β₂ of the two running means
        eps: ε in the denominator
        weight_decay: λ, the share of θ that is taken away per unit of η
        delta: δ, how nearly orthogonal; 0 never projects
        threshold: compare the cosine with δ/√dim(w), or with δ itself as the released code does
        eps_place: √(v̂ + ε) as printed, or √v̂ + ε as released
        decay: λ θ always, or the released code's λ θ²/‖θ‖ where an update was projected (a defect)
        view: a tensor is one vector w, or each of its channels is
        project: tensors of more than one dimension, or all, as the released code does
        amsgrad: never let v̂ fall
    """
    return OrthAdam(
        params,
        lr,
        betas,
        eps,
        weight_decay,
        delta,
        threshold=threshold,
        eps_place=eps_place,
        decay=decay,
        view=view,
        project=project,
        amsgrad=amsgrad,
    )
