"""What others offer for the same: built here as their users would."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnarena.core.spec import TaskSpec


@dataclass(frozen=True)
class Peer:
    """Somebody else's layer with a dense one behind it; `package` is what must be installed."""

    build: Callable[[TaskSpec], nn.Module]
    path: str
    package: str = "torch"

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


class WithHead(nn.Module):
    """The last output of a layer that calls like `torch.nn.LSTM`, through a dense layer."""

    def __init__(self, layer: nn.Module, features: int, outputs: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(features, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def torch_lstm(spec: TaskSpec) -> nn.Module:
    return WithHead(nn.LSTM(spec.input_size, 64, batch_first=True), 64, spec.output_size)


def torch_gru(spec: TaskSpec) -> nn.Module:
    return WithHead(nn.GRU(spec.input_size, 80, batch_first=True), 80, spec.output_size)


class LastOutput(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


def ncps_ltc(spec: TaskSpec) -> nn.Module:
    """The circuit of `neural_circuit_policies`: 9 inter, 7 command neurons."""
    import ncps.torch
    import ncps.wirings

    wiring = ncps.wirings.NCP(9, 7, spec.output_size, 2, 2, 14, 2)
    return LastOutput(ncps.torch.LTC(spec.input_size, wiring))


def ncps_cfc(spec: TaskSpec) -> nn.Module:
    import ncps.torch

    return WithHead(ncps.torch.CfC(spec.input_size, 64), 64, spec.output_size)


class DiffeqCTRNN(nn.Module):
    """CT-RNN(128) with three steps of RK4 an input, by `torchdiffeq.odeint`."""

    def __init__(self, inputs: int, hidden: int = 128) -> None:
        super().__init__()
        self.drive, self.turn = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden, bias=False)
        self.scale = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from torchdiffeq import odeint  # type: ignore[import-not-found]

        h = x.new_zeros(len(x), len(self.scale))
        times = x.new_tensor([0.0, 1.0])
        outputs = []
        for drive in self.drive(x).unbind(1):

            def slope(_: Tensor, h: Tensor, drive: Tensor = drive) -> Tensor:
                return self.scale * (drive + self.turn(h)).tanh() - h

            h = odeint(slope, h, times, method="rk4", options={"step_size": 1 / 3})[-1]
            outputs.append(h)
        return torch.stack(outputs, 1), h


def torchdiffeq_ct_rnn(spec: TaskSpec) -> nn.Module:
    return WithHead(DiffeqCTRNN(spec.input_size), 128, spec.output_size)


PEERS = {
    "torch.nn.LSTM": Peer(torch_lstm, "torch"),
    "torch.nn.GRU": Peer(torch_gru, "torch"),
    "ncps LTC": Peer(ncps_ltc, "ncps", "ncps"),
    "ncps CfC": Peer(ncps_cfc, "ncps", "ncps"),
    "torchdiffeq CT-RNN": Peer(torchdiffeq_ct_rnn, "torchdiffeq", "torchdiffeq"),
}
