"""A recurrent layer in both directions."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.budget import width_or_widest
from nnarena.nn.cells import CELLS, cell_parameters, inputs_of
from nnarena.nn.head import SequenceModel, width_of
from nnarena.nn.stacked import Stacked


class Bidirectional(nn.Module):
    """One layer reads from the first step on, another one from the last step back.

        h_t = layer(x_t, h_(t−1)),   g_t = layer'(x_t, g_(t+1)),   output_t = (h_t, g_t)

    `layer` is any recurrent layer that calls like `torch.nn.LSTM`, batch first; layer' is another one like it with
    start values of its own, or the one given as `backward`. The output is (B, T, 2H), where a layer gives H features,
    and the state a pair, one for each direction. Elapsed time, for layers that understand it, is turned round with the
    steps: going back, the time since the step before is that until the step after. The first step back has none before
    it and takes the time of the first step, as a forward reader does. The answer after all steps is `last`: the end of
    each direction, which lies at both ends of the output.

    Reference: Schuster and Paliwal 1997.
    """

    def __init__(self, layer: nn.Module, backward: nn.Module | None = None) -> None:
        super().__init__()
        self.forwards = layer
        self.backwards = _another(layer) if backward is None else backward
        if not all(getattr(part, "batch_first", True) for part in (layer, self.backwards)):
            raise ValueError("Bidirectional reads (batch, time, features): its layers must be batch first.")
        self.input_size: int = layer.input_size  # type: ignore[assignment]
        if self.backwards.input_size != self.input_size:
            sizes = f"{self.input_size} and {self.backwards.input_size}"
            raise ValueError(f"Both directions read the same input: the layers take {sizes} features.")
        self.widths = width_of(layer), width_of(self.backwards)
        self.hidden_size = sum(self.widths)
        self.continuous = all(getattr(part, "continuous", False) for part in (layer, self.backwards))

    def forward(
        self, x: Tensor, state: tuple[Any, Any] | None = None, timespans: Tensor | None = None
    ) -> tuple[Tensor, tuple[Any, Any]]:
        ahead, back = (None, None) if state is None else state
        if timespans is None:
            output, ahead = self.forwards(x, ahead)
            reverse, back = self.backwards(x.flip(1), back)
        else:
            output, ahead = self.forwards(x, ahead, timespans)
            reverse, back = self.backwards(x.flip(1), back, timespans.roll(-1, 1).flip(1))
        return torch.cat([output, reverse.flip(1)], -1), (ahead, back)

    def last(self, output: Tensor) -> Tensor:
        """(B, T, 2H) → (B, 2H): what each direction says when it has read everything."""
        return torch.cat([output[:, -1, : self.widths[0]], output[:, 0, self.widths[0] :]], -1)


def _another(layer: nn.Module) -> nn.Module:
    """A copy with start values of its own."""
    other = copy.deepcopy(layer)
    for part in other.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()  # type: ignore[operator]
    return other


@model("bidirectional", reference="Schuster and Paliwal 1997, Bidirectional recurrent neural networks, IEEE TSP 45")
def bidirectional(
    spec: TaskSpec,
    *,
    cell: Literal["lstm", "gru", "elman", "ct_rnn", "ct_gru", "ode_lstm"] = "lstm",
    hidden_size: int | None = None,
    layers: int = 1,
) -> nn.Module:
    """A recurrent layer that reads in both directions.

        h_t = cell(x_t, h_(t−1)),   g_t = cell(x_t, g_(t+1)),   output_t = (h_t, g_t)

    The ends of both directions pass a dense layer; both outputs of a step, where an answer is asked at each. It sees
    the future of every step. Elapsed time, where a task gives it, is one more input; to ct_rnn, ct_gru and ode_lstm it
    is time.

    Options:
        cell: what recurs
        hidden_size: units of a direction; none has as many as 20,000 parameters allow
        layers: layers on top of each other
    """
    if layers < 1:
        raise Unfit(f"it has at least 1 layer, not {layers}.")
    F, O = inputs_of(cell, spec), spec.output_size  # noqa: E741

    def parameters(H: int) -> int:
        return sum(2 * cell_parameters(cell, 2 * H if deep else F, H) for deep in range(layers)) + (2 * H + 1) * O

    units = width_or_widest("hidden_size", hidden_size, parameters)
    parts = [Bidirectional(CELLS[cell](2 * units if deep else F, units)) for deep in range(layers)]
    return SequenceModel(Stacked(*parts), spec)
