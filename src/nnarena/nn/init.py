"""Start values that more than one layer uses. They are Keras' defaults, as the published arena had them."""

from __future__ import annotations

from torch import Tensor, nn

from nnarena.nn.linear import Linear


def glorot_(weight: Tensor) -> Tensor:
    """Uniform in ±√(6 / (inputs + outputs)) (Glorot and Bengio 2010). A stack of gates counts as one matrix."""
    return nn.init.xavier_uniform_(weight)


def orthogonal_(weight: Tensor) -> Tensor:
    """Orthonormal columns (Saxe et al. 2013). A stack of gates counts as one tall matrix, so that the gates together
    keep the norm of the state and each of them shrinks it."""
    return nn.init.orthogonal_(weight)


def dense(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Glorot weights and zero bias."""
    layer = Linear(inputs, outputs)
    glorot_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
