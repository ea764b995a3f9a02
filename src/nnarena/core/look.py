"""What one sees of a trained model: its answers to the test samples, and what its layers make of a few of them.

M test samples, K classes, B samples that are followed, N heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@runtime_checkable
class Staged(Protocol):
    """A layer that can be looked into. `nnarena look` finds it by these two methods, wherever it lies in a model."""

    def stages(self, x: Tensor) -> Any:
        """A named tuple of what it makes of a batch, one after the other; None for what it does not do."""
        ...

    def arrays(self) -> dict[str, Tensor]:
        """What it has learned for every place of its input: (N, *shape of one input)."""
        ...


@dataclass(frozen=True)
class Layer:
    """One such layer of a model, with the samples that are followed.

    name      where it lies in the model
    inputs    (B, …) what came in
    stages    by name, (B, …) each, in their order
    arrays    by name, (N, …) each
    """

    name: str
    inputs: np.ndarray
    stages: Mapping[str, np.ndarray]
    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Look:
    """All that was seen.

    classes         names of the K classes; none where the task is not about classes
    inputs          (M, …) the test samples as the task stores them
    white           the largest number that an input may hold
    targets         (M, …)
    probabilities   (M, K), or none
    samples         (M,) their places among all samples of the task
    followed        (B,) places in the test part
    layers          those that can be looked into, in the order in which they were called
    """

    classes: tuple[str, ...]
    inputs: np.ndarray
    white: float
    targets: np.ndarray
    probabilities: np.ndarray | None
    samples: np.ndarray
    followed: np.ndarray
    layers: tuple[Layer, ...]
