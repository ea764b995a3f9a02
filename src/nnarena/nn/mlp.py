"""MLP: dense layers on a frame, or on all frames at once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}


class MLP(nn.Module):
    """x ← φ(LN(W x + b)), so many times; then one dense layer. Start values are torch's usual.

    Reads (…, inputs), gives (…, outputs).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden_size: int = 256,
        layers: int = 1,
        *,
        norm: bool = True,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        for name, size in (("hidden_size", hidden_size), ("layers", layers)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}.")
        parts: list[nn.Module] = []
        for width in (inputs, *[hidden_size] * (layers - 1)):
            parts += [nn.Linear(width, hidden_size), *([nn.LayerNorm(hidden_size)] if norm else [])]
            parts.append(ACTIVATIONS[activation]())
        self.layers = nn.Sequential(*parts, nn.Linear(hidden_size, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class FrameMLP(nn.Module):
    """An MLP on the last frame of (B, T, F), on each where a task asks for an answer at each, or on all at once."""

    def __init__(self, mlp: MLP, spec: TaskSpec, reads: str) -> None:
        super().__init__()
        self.mlp, self.per_step, self.reads = mlp, spec.per_step, reads

    def forward(self, x: Tensor, timespans: Tensor | None = None) -> Tensor:
        if timespans is not None:
            x = torch.cat([x, timespans.unsqueeze(-1)], -1)
        if self.reads == "all":
            return self.mlp(x.flatten(1))
        return self.mlp(x if self.per_step else x[:, -1])


@model("mlp", reference="Rosenblatt 1958; layer norm: Ba et al. 2016; GELU: Hendrycks and Gimpel 2016")
def mlp(
    spec: TaskSpec,
    *,
    hidden_size: int = 256,
    layers: int = 1,
    norm: bool = True,
    activation: Literal["gelu", "relu", "tanh"] = "gelu",
    reads: Literal["last", "all"] = "last",
) -> nn.Module:
    """Multilayer perceptron on the last frame: what one gets without a memory.

        x ← φ(LN(W x + b)), layers times;   y = W x + b

    Elapsed time, where a task gives it, is one more feature.

    Options:
        hidden_size: units of a layer
        layers: hidden layers
        norm: layer norm before each activation
        activation: φ
        reads: last sees one frame, all sees all of them as one long vector
    """
    if reads == "all" and spec.per_step:
        raise Unfit("it reads all frames at once, and the task asks for an answer at each: reads=last.")
    features = spec.input_size + spec.timespans
    inputs = features * spec.length if reads == "all" else features
    core = MLP(inputs, spec.output_size, hidden_size, layers, norm=norm, activation=activation)
    return FrameMLP(core, spec, reads)
