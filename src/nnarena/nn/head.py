"""From a layer to a competitor: the output a task asks for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnarena.core.spec import TaskSpec
from nnarena.nn.init import dense
from nnarena.nn.recurrent import Recurrent


class SequenceModel(nn.Module):
    """A recurrent layer and a dense one: reads (B, T, F), answers after the last step or at every one.

        many to one     y = W h_T + b        (`add`)
        many to many    y_t = W h_t + b      (`cell`)
        one to many     the same, where x is 0 after its first step (`wave`)

    `layer` is anything that calls like `torch.nn.LSTM`, batch first; `features` is the width of its output, found by
    `width_of` if not said, and 0 if its output is the answer already. Elapsed time goes to layers that understand
    it (`layer.continuous`), and joins the features of all others.
    """

    def __init__(self, layer: nn.Module, spec: TaskSpec, features: int | None = None) -> None:
        super().__init__()
        self.layer = layer
        width = width_of(layer) if features is None else features
        self.head = dense(width, spec.output_size) if width else nn.Identity()
        self.per_step = spec.per_step

    def forward(self, x: Tensor, timespans: Tensor | None = None) -> Tensor:
        told = {} if timespans is None else {"timespans": timespans}
        if told and not getattr(self.layer, "continuous", False):
            x, told = torch.cat([x, told["timespans"].unsqueeze(-1)], -1), {}
        return self.head(self.layer(x, **told)[0] if self.per_step else final_of(self.layer, x, **told))


def width_of(layer: nn.Module) -> int:
    """How many features a recurrent layer, ours or torch's, gives at each step: `hidden_size` if it says no other."""
    if isinstance(layer, nn.RNNBase):
        return (layer.proj_size or layer.hidden_size) * (1 + layer.bidirectional)
    return getattr(layer, "output_size", None) or layer.hidden_size  # type: ignore[return-value]


def final_of(layer: nn.Module, x: Tensor, **told: Tensor) -> Tensor:
    """What a layer says after all steps of x, (B, …)."""
    if isinstance(layer, Recurrent):
        return layer.final(x, **told)
    return last_of(layer, layer(x, **told)[0])


def last_of(layer: nn.Module, output: Tensor) -> Tensor:
    """What a layer says after all steps: its last output, unless it reads in another order and has its own `last`."""
    return layer.last(output) if hasattr(layer, "last") else output[:, -1]  # type: ignore[operator]
