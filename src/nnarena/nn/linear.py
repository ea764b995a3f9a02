"""A dense layer: torch's, but on a GPU with gradients of small weights from many rows that all of it computes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.kernels.recurrence import can_fuse

ROWS = 1024  # from which on it pays


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as `torch.nn.functional.linear`; x is (…, F), weight (N, F)."""
    many = x.shape[:-1].numel() >= ROWS and x.shape[-1] > 0
    if many and can_fuse(x) and not torch.is_autocast_enabled("cuda"):
        from nnarena.kernels.dense import dense

        return dense(x, weight, bias)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """`torch.nn.Linear` by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
