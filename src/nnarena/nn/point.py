"""The smallest model of all: two numbers, the place where an optimizer stands on a surface."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import BadOption, Unfit
from nnarena.core.spec import TaskSpec


class Point(nn.Module):
    """Its position is its parameter (D,), and its answer to anything (B,): (B, D)."""

    def __init__(self, start: tuple[float, ...], spread: float = 0.0, *, device: torch.device | None = None) -> None:
        super().__init__()
        place = torch.tensor(start, device=device)
        self.position = nn.Parameter(place + spread * torch.randn_like(place))

    def forward(self, x: Tensor) -> Tensor:
        return self.position.expand(len(x), -1)


@model("point", reference="what is left of a model when only the optimizer matters", reads="nothing")
def point(spec: TaskSpec, *, spread: float = 0.02) -> Point:
    """A point on a surface, which an optimizer moves.

        θ₀ ~ N(start, σ²)

    Rivals with the same seed start at the same place.

    Options:
        spread: σ, how far from the start of the surface it begins, by the seed
    """
    if not spec.start:
        raise Unfit("it is a place on a surface, and the task has none: it is for -t surface.")
    if spread < 0:
        raise BadOption(f"spread must not be negative, not {spread}.")
    return Point(spec.start, spread)
