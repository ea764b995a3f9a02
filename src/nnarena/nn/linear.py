"""A dense layer over very many rows: torch's, but with a weight gradient that the whole GPU computes.

The gradient of a small weight from many rows is a product whose result is tiny and whose sum is long. For one model the
libraries cut the sum into parts; for a population (`torch.vmap`) they do not, and leave a GPU almost without work.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 512  # in a part, at least


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as `torch.nn.functional.linear`; x is (…, F), weight (N, F)."""
    rows = x.shape[:-1].numel()
    parts = next((count for count in (64, 32, 16, 8, 4, 2) if rows % count == 0 and rows // count >= ROWS), 1)
    return linear_in_parts(x, weight, bias, parts) if x.is_cuda and parts > 1 else F.linear(x, weight, bias)


def linear_in_parts(x: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> Tensor:
    """One copy of the weight for every part of the rows: the gradients of the copies are parts of a sum."""
    copies = weight.t().expand(parts, *reversed(weight.shape))
    product = (x.reshape(parts, -1, x.shape[-1]) @ copies).view(*x.shape[:-1], len(weight))
    return product if bias is None else product + bias


class Linear(nn.Linear):
    """`torch.nn.Linear` by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
