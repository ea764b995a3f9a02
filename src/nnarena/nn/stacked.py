"""Recurrent layers on top of each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.budget import width_or_widest
from nnarena.nn.cells import CELLS, cell_parameters, inputs_of
from nnarena.nn.head import SequenceModel, last_of, width_of


class Stacked(nn.Module):
    """Every layer reads what the one below it says at each step.

        h¹_t = layer¹(x_t, h¹_(t−1)),   h²_t = layer²(h¹_t, h²_(t−1)),   …

    Layers call like `torch.nn.LSTM`, batch first. The output is that of the last, and the state a tuple, one for each
    layer. Elapsed time goes to all layers if all understand it.

    Reference: Schmidhuber 1992; El Hihi and Bengio 1995.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        if not layers:
            raise ValueError("Stacked wants at least one layer.")
        sizes = [(layer.input_size, width_of(layer)) for layer in layers]
        for place, ((_, gives), (takes, _)) in enumerate(pairwise(sizes), start=1):
            if gives != takes:
                raise ValueError(f"Layer {place} gives {gives} features, and layer {place + 1} takes {takes}.")
        self.layers = nn.ModuleList(layers)
        self.input_size, self.hidden_size = sizes[0][0], sizes[-1][1]
        self.continuous = all(getattr(layer, "continuous", False) for layer in layers)

    def forward(
        self, x: Tensor, state: tuple[Any, ...] | None = None, timespans: Tensor | None = None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        states = []
        more = () if timespans is None else (timespans,)
        for layer, start in zip(self.layers, state or [None] * len(self.layers), strict=True):
            x, end = layer(x, start, *more)
            states.append(end)
        return x, tuple(states)

    def last(self, output: Tensor) -> Tensor:
        return last_of(self.layers[-1], output)


@model("stacked", reference="Schmidhuber 1992, Learning complex, extended sequences, Neural Computation 4")
def stacked(
    spec: TaskSpec,
    *,
    cell: Literal["lstm", "gru", "elman", "ct_rnn", "ct_gru", "ode_lstm"] = "lstm",
    hidden_size: int | None = None,
    layers: int = 2,
) -> nn.Module:
    """Recurrent layers on top of each other, each reading the one below.

        h¹_t = cell¹(x_t, h¹_(t−1)),   h²_t = cell²(h¹_t, h²_(t−1)),   …

    The last output of the last layer passes a dense layer. Elapsed time, where a task gives it, is one more input;
    to ct_rnn, ct_gru and ode_lstm it is time.

    Options:
        cell: what recurs
        hidden_size: units of a layer; none has as many as 20,000 parameters allow
        layers: layers on top of each other
    """
    if layers < 1:
        raise Unfit(f"it has at least 1 layer, not {layers}.")
    F, O = inputs_of(cell, spec), spec.output_size  # noqa: E741

    def parameters(H: int) -> int:
        return sum(cell_parameters(cell, H if deep else F, H) for deep in range(layers)) + (H + 1) * O

    units = width_or_widest("hidden_size", hidden_size, parameters)
    parts = [CELLS[cell](units if deep else F, units) for deep in range(layers)]
    return SequenceModel(Stacked(*parts), spec)
