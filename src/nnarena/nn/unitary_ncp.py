"""Unitary NCP: a unitary network remembers, a neural circuit policy decides.

B batch, T time, F input features, M motor neurons.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.nn.head import SequenceModel
from nnarena.nn.ltc import LTC
from nnarena.nn.unitary_rnn import UnitaryRNN
from nnarena.nn.wirings import NCP

State = tuple[tuple[Tensor, Tensor], Tensor]


class UnitaryNCP(nn.Module):
    """A unitary network whose real part is what a neural circuit policy senses.

        h ← modReLU(W h + U x_t),   W unitary            (see `UnitaryRNN`)
        v ← circuit(v, Re h)                             (see `LTC`), its motor neurons are the output

    The circuit has 60 % inter and 40 % command neurons, which do not listen to each other: memory is the business of
    the unitary part.

    Shapes: input (B, T, F), or (T, B, F) with `batch_first=False`; output (B, T, M); state ((re, im), v). It counts
    steps: elapsed time is a feature, if it is to be known.

    Reference: the published arena, where it was introduced.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        hidden_size: int = 32,
        capacity: int = 4,
        units: int = 8,
        unfolds: int = 6,
        wiring_seed: int = 22222,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        inter = math.floor(0.6 * units)
        if not 2 <= inter < units:
            raise ValueError(f"units must be at least 4, to leave two inter and two command neurons, not {units}.")
        wiring = NCP(
            inter=inter,
            command=units - inter,
            motor=output_size,
            sensory_fanout=2,
            inter_fanout=2,
            recurrent_command_synapses=0,
            motor_fanin=2,
            seed=wiring_seed,
        )
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, output_size
        self.batch_first = batch_first
        made = {"batch_first": batch_first, "device": device, "dtype": dtype}
        self.memory = UnitaryRNN(input_size, hidden_size, capacity=capacity, **made)
        self.circuit = LTC(hidden_size, wiring, unfolds=unfolds, **made)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        held, potentials = state if state is not None else (None, None)
        sensed, held = self.memory(x, held)
        output, potentials = self.circuit(sensed, potentials)
        return output, (held, potentials)


@model("unitary_ncp", reference="the published arena; its parts: Jing et al. 2017 and Lechner et al. 2020")
def unitary_ncp(
    spec: TaskSpec,
    *,
    hidden_size: int = 32,
    capacity: int = 4,
    units: int = 8,
    unfolds: int = 6,
    wiring_seed: int = 22222,
) -> nn.Module:
    """Unitary NCP: a unitary network remembers, and a neural circuit policy reads its real part.

        h ← modReLU(W h + U x_t),   W unitary
        v ← circuit(v, Re h),   the motor neurons of the circuit are the answer

    Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units of the unitary network, even; the published arena has 32
        capacity: its layers of rotations, even; the published arena has 4
        units: inter and command neurons of the circuit; the published arena has 8
        unfolds: steps of the circuit's solver between two inputs
        wiring_seed: who is connected with whom, and with which sign; the same in every repetition
    """
    layer = UnitaryNCP(
        spec.input_size + spec.timespans,
        spec.output_size,
        hidden_size=hidden_size,
        capacity=capacity,
        units=units,
        unfolds=unfolds,
        wiring_seed=wiring_seed,
    )
    return SequenceModel(layer, spec, features=0)
