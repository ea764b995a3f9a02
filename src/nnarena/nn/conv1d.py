"""Convolutions over time."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.budget import width_or_widest
from nnarena.nn.init import dense


class ConvNet1d(nn.Module):
    """Convolutions over time whose reach doubles from layer to layer.

        h ← relu(b + Σ_j W_j h_(t + d (j − ⌊(k−1)/2⌋))),   d = 1, 2, 4, …

    Zeros lie beyond both ends, so that there are as many steps as before. (B, T, F) → (B, T, C). Every step sees
    1 + (k − 1)(2^layers − 1) others around it, the future too: what it gives is not causal.

    Reference: LeCun 1989 in time; Waibel et al. 1989; the doubling reach: van den Oord et al. 2016.
    """

    def __init__(self, input_size: int, channels: int, *, kernel_size: int = 5, layers: int = 4) -> None:
        super().__init__()
        for name, size in {"channels": channels, "kernel_size": kernel_size, "layers": layers}.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        widths = [input_size, *[channels] * layers]
        self.layers = nn.ModuleList(
            nn.Conv1d(widths[depth], channels, kernel_size, dilation=2**depth) for depth in range(layers)
        )

    @property
    def reach(self) -> int:
        """How many steps an output sees."""
        return 1 + sum(_span(layer) for layer in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for layer in self.layers:
            x = layer(F.pad(x, _margins(layer))).relu()
        return x.transpose(1, 2)


def _span(layer: nn.Module) -> int:
    """How many steps beside one a convolution looks at."""
    return (layer.kernel_size[0] - 1) * layer.dilation[0]  # type: ignore[index,operator]


def _margins(layer: nn.Module) -> tuple[int, int]:
    """Steps beyond both ends that it wants, for as many outputs as there are inputs."""
    before = (layer.kernel_size[0] - 1) // 2 * layer.dilation[0]  # type: ignore[index,operator]
    return int(before), _span(layer) - int(before)  # type: ignore[arg-type]


class PooledConvNet(nn.Module):
    """`ConvNet1d` and a dense layer, at every step or on the mean (the maximum) over all."""

    def __init__(self, net: ConvNet1d, channels: int, spec: TaskSpec, pool: str) -> None:
        super().__init__()
        self.net, self.head = net, dense(channels, spec.output_size)
        self.per_step, self.pool = spec.per_step, pool

    def forward(self, x: Tensor, timespans: Tensor | None = None) -> Tensor:
        if timespans is not None:
            x = torch.cat([x, timespans.unsqueeze(-1)], -1)
        features = self.net(x)
        if not self.per_step:
            features = features.mean(1) if self.pool == "mean" else features.amax(1)
        return self.head(features)


@model("conv1d", reference="Waibel et al. 1989, Phoneme recognition using time-delay neural networks, IEEE ASSP 37")
def conv1d(
    spec: TaskSpec,
    *,
    channels: int | None = None,
    kernel_size: int = 5,
    layers: int = 4,
    pool: Literal["mean", "max"] = "mean",
) -> nn.Module:
    """Convolutions over time, each with twice the reach of the one before; then the mean over time.

        h ← relu(b + Σ_j W_j h_(t + d (j − ⌊(k−1)/2⌋))),   d = 1, 2, 4, …;   y = V mean_t(h_t) + c

    An answer at every step is V h_t + c, which sees the future of the step. Elapsed time, where a task gives it, is
    one more input.

    Options:
        channels: filters of a layer; none has as many as 20,000 parameters allow
        kernel_size: steps a filter sees
        layers: convolutions; the last one has a reach of 2^(layers − 1) times the first one's
        pool: over time, before the dense layer, where one answer is asked
    """
    if kernel_size < 1 or layers < 1:
        raise Unfit("it has at least 1 layer and a kernel_size of at least 1.")
    inputs, outputs = spec.input_size + spec.timespans, spec.output_size

    def parameters(C: int) -> int:
        return C * (kernel_size * inputs + 1) + (layers - 1) * C * (kernel_size * C + 1) + (C + 1) * outputs

    width = width_or_widest("channels", channels, parameters)
    net = ConvNet1d(inputs, width, kernel_size=kernel_size, layers=layers)
    return PooledConvNet(net, width, spec, pool)
