"""x Wᵀ + b: at once, or when somebody wants it.

On a GPU, gradients of small weights from many rows are computed by all of it (`dense`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nnarena.kernels.launch import can_fuse

ROWS = 1024  # from which on it pays


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as `torch.nn.functional.linear`; x is (…, F), weight (N, F)."""
    many = x.shape[:-1].numel() >= ROWS and x.shape[-1] > 0
    if many and can_fuse(x) and not torch.is_autocast_enabled("cuda"):
        from nnarena.kernels.layers.dense import dense

        return dense(x, weight, bias)
    return F.linear(x, weight, bias)


@dataclass(frozen=True, eq=False)
class Projection:
    """x Wᵀ + b of all steps, (B, T, N) from x (B, T, F), that is yet to be computed.

    What a cell's `project` returns in place of a tensor: whoever drives the cell computes it before the loop, or lets
    the loop do it where that moves less memory.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def compute(self) -> Tensor:
        return linear(self.x, self.weight, self.bias)
