"""What a task asks of a model, in numbers: enough to build one, and free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nnarena.core.errors import Unfit

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Shapes and meaning of one sample, without the batch dimension.

    input_shape   (steps, features) of a sequence, (channels, height, width) of an image, or (words,) of a vocabulary
    output_size   values to predict, or classes to tell apart
    target        "values" (regression) or "class" (one of `output_size`)
    per_step      an output at every step, or one after the last
    timespans     the time since the step before comes along as a second input, (steps,)
    """

    input_shape: tuple[int, ...]
    output_size: int
    target: Literal["values", "class"]
    per_step: bool = False
    timespans: bool = False

    @property
    def length(self) -> int:
        return self.sequence[0]

    @property
    def input_size(self) -> int:
        return self.sequence[1]

    @property
    def sequence(self) -> tuple[int, int]:
        if len(self.input_shape) != 2:
            raise Unfit(f"it reads sequences (steps, features), and the task gives {self.input_shape}.")
        return self.input_shape[0], self.input_shape[1]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """What a model must return for one sample."""
        return (self.length, self.output_size) if self.per_step else (self.output_size,)


@dataclass(frozen=True)
class Samples:
    """A task's data. N samples, T steps, F features.

    inputs      (N, T, F) float32; or (N, C, H, W) images, uint8 where the task makes numbers of them in `present`
    targets     (N, …) float32 values, or (N,) int64 classes
    timespans   (N, T) float32, the time since the step before, where the task gives it
    series      (N,) which recording each window was cut from; windows of one series then never part at the split
    set_aside   (N,) which samples the publisher keeps for the test; the protocol then splits the others only
    """

    inputs: np.ndarray
    targets: np.ndarray
    timespans: np.ndarray | None = None
    series: np.ndarray | None = None
    set_aside: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def first(self, count: int) -> Samples:
        """At most `count` samples from the beginning."""

        def cut(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[:count]

        rest = (cut(array) for array in (self.timespans, self.series, self.set_aside))
        return Samples(self.inputs[:count], self.targets[:count], *rest)
