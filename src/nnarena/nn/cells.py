"""The recurrent layers that others are made of, by name."""

from __future__ import annotations

from nnarena.nn.elman import Elman
from nnarena.nn.gru import GRU
from nnarena.nn.lstm import LSTM

CELLS = {"lstm": LSTM, "gru": GRU, "elman": Elman}
GATES = {"lstm": (4, 1), "gru": (3, 2), "elman": (1, 1)}  # how many blocks of weights, and biases of each


def cell_parameters(cell: str, inputs: int, units: int) -> int:
    """How many parameters a layer of it has."""
    blocks, biases = GATES[cell]
    return blocks * units * (inputs + units + biases)
