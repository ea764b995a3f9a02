"""The command as people run it: in a folder of its own, with its exit code and what it printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nnarena.cli import _guarded
from nnarena.nn import GRU

OWN = '''
import torch
from torch import nn


class MyCell(nn.Module):
    """A plain tanh RNN."""

    def __init__(self, input_size, hidden_size=8, scale: float = 1.0):
        super().__init__()
        self.rnn = nn.RNN(input_size, hidden_size, batch_first=True)

    def forward(self, x, state=None):
        return self.rnn(x, state)


class Everywhere(nn.Module):
    """Answers at every step, asked or not."""

    def __init__(self, input_size, output_size):
        super().__init__()
        self.dense = nn.Linear(input_size, output_size)

    def forward(self, x):
        return self.dense(x)


class Boom(Everywhere):
    """Breaks as soon as it is trained."""

    def forward(self, x):
        if self.training:
            raise ZeroDivisionError("training is hard")
        return self.dense(x[:, -1])


class MySGD(torch.optim.SGD):
    """Plain SGD."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)


def parity(rng, *, length: int = 6, samples: int = 640):
    """Is the number of ones odd?"""
    x = rng.integers(0, 2, (samples, length, 1))
    return x, x.sum((1, 2)) % 2


NUMBER = 3
'''


@dataclass(frozen=True)
class Printed:
    code: int
    out: str
    err: str


Arena = Callable[..., Printed]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a file of one's own, and no data sets."""
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "no-data"))
    return tmp_path


@pytest.fixture
def arena(own: Path, capfd: pytest.CaptureFixture[str]) -> Arena:
    """`arena("run", "-t", "add", …)` in this process: as the command, without the seconds torch takes to load."""

    def run(*arguments: str) -> Printed:
        capfd.readouterr()
        code = _guarded([str(argument) for argument in arguments], debug=False)
        return Printed(code, *capfd.readouterr())

    return run


@pytest.fixture
def process(own: Path) -> Arena:
    """The same in a process of its own."""

    def run(*arguments: str, **environment: str) -> Printed:
        command = [sys.executable, "-m", "nnarena", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
        return Printed(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def wrong_gru(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GRU whose gradient is wrong by a tenth, but in float64."""
    right = GRU.forward

    def nearly(self: GRU, *arguments: Any) -> Any:
        output, state = right(self, *arguments)
        wrong = output if output.dtype.itemsize == 8 else output + 0.1 * (output - output.detach())
        return wrong, state

    monkeypatch.setattr(GRU, "forward", nearly)
