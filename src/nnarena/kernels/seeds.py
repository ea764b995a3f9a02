"""How `torch.vmap` meets a function whose tensors have the seeds in front: its dimension becomes a part of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def folded(size: int, dim: int | None, tensor: Tensor) -> Tensor:
    """The mapped dimension becomes a part of the seeds."""
    tensor = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def unfolded(size: int, outputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    parts = tuple(output.unflatten(0, (size, -1)) for output in outputs)
    return parts, (0,) * len(parts)
