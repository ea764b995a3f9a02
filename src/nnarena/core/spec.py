"""What a task asks of a model, in numbers: enough to build one, and free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nnarena.core.errors import Unfit

if TYPE_CHECKING:
    import numpy as np


PADDING, BEGIN, END = 0, 1, 2  # of every vocabulary; its own tokens come after them
SPECIAL = 3


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Shapes and meaning of one sample, without the batch dimension.

    input_shape   (steps, features) of a sequence, (channels, height, width) of an image, (steps,) of tokens,
                  or (words,) of a vocabulary; () where there is nothing to read
    output_size   values to predict, classes to tell apart, or tokens to write with
    target        "values" (regression), "class" (one of `output_size`) or "tokens" (a sequence of these)
    per_step      an output at every step, or one after the last
    timespans     the time since the step before comes along as a second input, (steps,)
    vocabulary    how many tokens there are to read, where the input is tokens
    target_length steps of a target of tokens, END and padding included
    start         where a model begins that is nothing but a place

    Tokens are numbers: PADDING, BEGIN and END, then a vocabulary's own. A source is padded in front, so that its last
    step is its last token, and a target behind.
    """

    input_shape: tuple[int, ...]
    output_size: int
    target: Literal["values", "class", "tokens"]
    per_step: bool = False
    timespans: bool = False
    vocabulary: int = 0
    target_length: int = 0
    start: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        return self.sequence[0]

    @property
    def input_size(self) -> int:
        return self.sequence[1]

    @property
    def sequence(self) -> tuple[int, int]:
        if self.vocabulary:
            raise Unfit("it reads sequences of numbers, and the task gives tokens, to be turned into others.")
        if len(self.input_shape) != 2:
            raise Unfit(f"it reads sequences (steps, features), and the task gives {self.input_shape}.")
        return self.input_shape[0], self.input_shape[1]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """What a model must return for one sample."""
        if self.target == "tokens":
            return self.target_length, self.output_size
        return (self.length, self.output_size) if self.per_step else (self.output_size,)


@dataclass(frozen=True)
class Samples:
    """A task's data. N samples, T steps, F features.

    inputs      (N, T, F) float32; (N, C, H, W) images, uint8 where the task makes numbers of them in `present`; or
                (N, T) int64 tokens
    targets     (N, …) float32 values, (N,) int64 classes, or (N, L) int64 tokens
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
