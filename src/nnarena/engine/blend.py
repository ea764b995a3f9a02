"""A learning rate for each member, with one optimizer for all.

Our optimizers' updates are linear in the learning rate η: θ(η) = θ_old + η u. So all members take the step of one
rate η₀, and each keeps its share of it:

    θ ← θ_old + r_s (θ_new − θ_old),   r_s = η_s / η₀

exactly θ_new where r_s = 1, and exactly θ_old where r_s = 0: such a member stands still.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED = 64  # numbers: where a tensor may begin, for the fastest kernels to take it


class Blend:
    """The parameters of S members, laid side by side so that two kernels blend them all.

    `params` are (S, …), or of one member without that dimension; they move to other memory here, and stay who they are.
    """

    def __init__(self, params: Sequence[Tensor], size: int, start_lr: float) -> None:
        self.start_lr = start_lr
        self.rates = [1.0] * size
        self.slabs = [
            Slab([param for param in params if param.dtype == dtype], size)
            for dtype in dict.fromkeys(param.dtype for param in params)
        ]

    def set_rates(self, lrs: Sequence[float]) -> None:
        """From now on these learning rates, one a member; 0 stands still."""
        rates = [lr / self.start_lr if self.start_lr else 1.0 for lr in lrs]
        if rates != self.rates:
            self.rates = rates
            for slab in self.slabs:
                slab.set_rates(rates)

    def remember(self) -> None:
        """Before the step."""
        for slab in self.slabs:
            slab.old.copy_(slab.now)

    def apply(self) -> None:
        """After the step."""
        for slab in self.slabs:
            # lerp is exact at both ends, but would let a NaN of θ_new through to who stands still
            mixed = torch.lerp(slab.old, slab.now, slab.rate)
            torch.where(slab.rate == 0, slab.old, mixed, out=slab.now)


class Slab:
    """Tensors of one type in one piece of memory: `now`, `old` before the step, and each number's `rate`."""

    def __init__(self, params: Sequence[Tensor], size: int) -> None:
        starts, end = [], 0
        for param in params:
            starts.append(end)
            end += -(-param.numel() // ALIGNED) * ALIGNED
        self.size = size
        self.now = params[0].new_zeros(end).detach()
        self.old, self.rate = torch.zeros_like(self.now), torch.ones_like(self.now)
        self.places = [slice(start, start + param.numel()) for start, param in zip(starts, params, strict=True)]
        for param, place in zip(params, self.places, strict=True):
            view = self.now[place].view(param.shape)
            view.copy_(param.detach())
            param.data = view

    def set_rates(self, rates: Sequence[float]) -> None:
        column = torch.tensor(rates, dtype=torch.float64).to(self.rate)[:, None]
        for place in self.places:
            part = self.rate[place]
            part.view(self.size, len(part) // self.size).copy_(column)
