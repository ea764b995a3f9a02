"""Start values that more than one layer uses. They are Keras' defaults, as the published arena had them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def glorot_(weight: Tensor) -> Tensor:
    """Uniform in ±√(6 / (inputs + outputs)) (Glorot and Bengio 2010). A stack of gates counts as one matrix."""
    return nn.init.xavier_uniform_(weight)


def orthogonal_blocks_(weight: Tensor, blocks: int) -> Tensor:
    """Every one of the `blocks` square matrices stacked in `weight` orthogonal (Saxe et al. 2013)."""
    with torch.no_grad():
        for block in weight.chunk(blocks):
            nn.init.orthogonal_(block)
    return weight


def dense(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Glorot weights and zero bias."""
    layer = nn.Linear(inputs, outputs)
    glorot_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
