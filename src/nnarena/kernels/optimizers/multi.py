"""Steps of many tensors at once: what the kernels of `projected` are told, and where they find the numbers.

Nothing looks at a number on the host, so that steps can be recorded in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nnarena.kernels.launch import launch

POINTERS = 6  # of a tensor: parameter, gradient, means, squares, their greatest so far, steps


class Shape(NamedTuple):
    """A tensor as it lies in memory: members of a population, each of so many rows (channels) of so many columns.

    `projected` tells whether its updates may lose something.
    """

    members: int
    rows: int
    columns: int
    projected: bool


@dataclass(frozen=True)
class Rule:
    """What kind of step it is; each kind is a kernel of its own.

    adam           or else SGD with momentum
    by_gradient    x = g, or else x = u
    view           w is a `tensor`, each `channel`, or `both`: channels if all of them pass the test, else the tensor
    by_dimension   the cosine is compared with δ/√dim(w), or else with δ
    eps_inside     √(v̂ + ε), or else √v̂ + ε
    curved         where an update was projected w decays as λ w²/‖w‖
    """

    adam: bool = True
    by_gradient: bool = False
    view: str = "tensor"
    by_dimension: bool = True
    eps_inside: bool = False
    nesterov: bool = False
    amsgrad: bool = False
    maximize: bool = False
    curved: bool = False


@dataclass(frozen=True)
class Numbers:
    """The numbers of a step.

    lr      η, or a tensor with it
    first   β₁, or SGD's μ; `enter` is how much of g is added to m
    second  β₂; `enter_square` is how much of g² is added to v
    logs    of β₁ and β₂
    tiny    added to ‖w‖
    ratio   how much of the decay is left where an update was projected
    """

    lr: float | Tensor
    first: float
    enter: float
    second: float = 0.0
    enter_square: float = 0.0
    logs: tuple[float, float] = (0.0, 0.0)
    eps: float = 0.0
    tiny: float = 0.0
    delta: float = 0.0
    decay: float = 0.0
    ratio: float = 1.0


class Table:
    """Where the numbers of a list of tensors lie, for kernels to read."""

    def __init__(self, shapes: Sequence[Shape], device: torch.device) -> None:
        from nnarena.kernels.optimizers.projected import ROWS, SPAN

        self.device = device
        layout, blocks, tensors = [], [], []
        sums = verdicts = 0
        for number, (members, rows, columns, projected) in enumerate(shapes):
            pieces = -(-columns // SPAN.value)
            layout.append((columns, members * rows, sums, verdicts))
            blocks += [(number, row, piece) for row in range(0, members * rows, ROWS.value) for piece in range(pieces)]
            for first in range(0, members * rows, rows):
                tensors.append((rows, columns, sums + first * pieces, verdicts + first, int(projected)))
            sums, verdicts = sums + members * rows * pieces, verdicts + members * rows
        self.layout, self.blocks, self.tensors = (
            torch.tensor(lines, dtype=torch.int64, device=device) for lines in (layout, blocks, tensors)
        )
        self.sums, self.verdicts = (torch.empty(size, device=device) for size in ((4, sums), (3, verdicts)))
        self.pointers = torch.zeros(len(layout), POINTERS, dtype=torch.int64, device=device)
        self.values: list[int] = []
        self.spare = self._on_host([0] * (len(layout) * POINTERS))  # while a step is recorded nothing can be reserved
        self.recorded: list[Tensor] = []

    def point(self, values: list[int]) -> None:
        """Set all addresses, tensor after tensor.

        A recorded step copies them from the host whenever it is replayed. So its copy there is kept, and from then on
        nobody knows which ones the device has.
        """
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.spare.copy_(torch.tensor(values).view(-1, POINTERS))
            self.pointers.copy_(self.spare, non_blocking=True)
            self.recorded.append(self.spare)
        elif self.recorded or values != self.values:
            if self.recorded and self.spare is self.recorded[-1]:
                self.spare = self._on_host(values)
            self.pointers.copy_(self._on_host(values), non_blocking=True)
            self.values = values

    def _on_host(self, values: list[int]) -> Tensor:
        numbers = torch.tensor(values).view(-1, POINTERS)
        return numbers.pin_memory() if self.device.type == "cuda" else numbers


def step(table: Table, rule: Rule, numbers: Numbers) -> None:
    """One step of all tensors of the table; their counters are already one further."""
    from nnarena.kernels.optimizers.projected import judge, measure, move

    n, r = numbers, rule
    kinds = (r.adam, r.eps_inside, r.nesterov, r.amsgrad, r.maximize)
    blocks, tensors = (len(table.blocks),), (len(table.tensors),)
    launch(
        measure, blocks,
        table.pointers, table.layout, table.blocks, table.sums, table.sums.shape[1],
        n.first, n.enter, n.second, n.enter_square, n.logs[1], n.eps, *kinds, r.by_gradient,
        like=table.sums, num_warps=4,
    )  # fmt: skip
    launch(
        judge, tensors,
        table.tensors, table.sums, table.sums.shape[1], table.verdicts, table.verdicts.shape[1],
        n.lr, n.tiny, n.delta, n.decay, n.ratio, isinstance(n.lr, Tensor), r.view, r.by_dimension, r.curved,
        like=table.sums, num_warps=4,
    )  # fmt: skip
    launch(
        move, blocks,
        table.pointers, table.layout, table.blocks, table.verdicts, table.verdicts.shape[1],
        n.lr, n.first, *n.logs, n.eps, isinstance(n.lr, Tensor), *kinds,
        like=table.sums, num_warps=4,
    )  # fmt: skip
