"""The recurrent layers that others are made of, by name."""

from __future__ import annotations

from nnarena.core.spec import TaskSpec
from nnarena.nn.ct_gru import CTGRU
from nnarena.nn.ct_rnn import CTRNN
from nnarena.nn.elman import Elman
from nnarena.nn.gru import GRU
from nnarena.nn.lstm import LSTM
from nnarena.nn.ode_lstm import ODELSTM

CELLS = {"lstm": LSTM, "gru": GRU, "elman": Elman, "ct_rnn": CTRNN, "ct_gru": CTGRU, "ode_lstm": ODELSTM}


def cell_parameters(cell: str, inputs: int, units: int) -> int:
    """How many parameters a layer of it has. Nothing is drawn at random for that."""
    return sum(parameter.numel() for parameter in CELLS[cell](inputs, units, device="meta").parameters())


def inputs_of(cell: str, spec: TaskSpec) -> int:
    """Features that a layer of it reads: elapsed time is one of them, unless it has its own way of taking it."""
    return spec.input_size + (spec.timespans and not CELLS[cell].continuous)
