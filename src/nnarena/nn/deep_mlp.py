"""Deep MLP: many equal layers and nothing that helps them, to see what initialisers and regularisers do."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec

ACTIVATIONS = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


class DeepMLP(nn.Module):
    """x ← drop(φ(BN(W x + b))), so many times; then one dense layer. (B, …) → (B, outputs).

    Start values are torch's usual, biases zero.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden_size: int = 64,
        layers: int = 10,
        *,
        activation: str = "tanh",
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in (("hidden_size", hidden_size), ("layers", layers)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie between 0 and 1, not {dropout}.")
        parts: list[nn.Module] = []
        for width in (inputs, *[hidden_size] * (layers - 1)):
            parts.append(nn.Linear(width, hidden_size))
            parts += [nn.BatchNorm1d(hidden_size)] if batch_norm else []
            parts.append(ACTIVATIONS[activation]())
            parts += [nn.Dropout(dropout)] if dropout else []
        self.layers = nn.Sequential(*parts, nn.Linear(hidden_size, outputs))
        for part in self.layers:
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor, timespans: Tensor | None = None) -> Tensor:
        if timespans is not None:
            x = torch.cat([x, timespans.unsqueeze(-1)], -1)
        return self.layers(x.flatten(1))


@model(
    "deep_mlp", reference="Glorot and Bengio 2010, Understanding the difficulty of training deep feedforward networks"
)
def deep_mlp(
    spec: TaskSpec,
    *,
    hidden_size: int = 64,
    layers: int = 10,
    activation: Literal["sigmoid", "tanh", "relu"] = "tanh",
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Multilayer perceptron of many equal layers on all frames at once, without what usually helps depth.

        x ← drop(φ(BN(W x + b))), layers times;   y = W x + b

    Elapsed time, where a task gives it, is one more feature.

    Options:
        hidden_size: units of a layer
        layers: hidden layers
        activation: φ
        batch_norm: normalise each unit over the batch before φ
        dropout: share of the units that each layer leaves out in training
    """
    if spec.per_step:
        raise Unfit("it reads all frames at once, and the task asks for an answer at each.")
    inputs = spec.length * (spec.input_size + spec.timespans)
    return DeepMLP(
        inputs, spec.output_size, hidden_size, layers, activation=activation, batch_norm=batch_norm, dropout=dropout
    )
