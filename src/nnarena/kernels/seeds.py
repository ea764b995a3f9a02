"""How `torch.vmap` meets a function whose tensors have the seeds in front: its dimension becomes a part of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def folded(size: int, dim: int | None, tensor: Tensor) -> Tensor:
    """The mapped dimension becomes a part of the seeds."""
    tensor = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def unfolded(size: int, outputs: Sequence[Tensor | None]) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Outputs with the mapped dimension in front again, and where it is: 0, or None for what is none."""
    parts = tuple(None if output is None else output.unflatten(0, (size, -1)) for output in outputs)
    return parts, tuple(None if part is None else 0 for part in parts)
