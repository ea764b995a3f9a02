"""Layer norms: torch's, but on a GPU those of many short rows, with their GELU, in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.kernels.linear import ROWS
from nnarena.kernels.recurrence import can_fuse

SHORT = 128  # numbers of a row, up to which a program of its own is too much for it


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, epsilon: float = 1e-5, *, gelu: bool = False, fused: bool = True
) -> Tensor:
    """`torch.nn.functional.layer_norm` over the last dimension, and GELU of it if asked for."""
    short = x.shape[-1] <= SHORT and x.shape[:-1].numel() >= ROWS
    if fused and short and can_fuse(x) and not torch.is_autocast_enabled("cuda"):
        from nnarena.kernels.layers.norm import row_norm

        return row_norm(x, weight, bias, epsilon, gelu)
    normed = F.layer_norm(x, x.shape[-1:], weight, bias, epsilon)
    return F.gelu(normed) if gelu else normed


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` of the last dimension by `layer_norm`."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__(size, eps)

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)
