"""Cutting windows out of recorded series.

Series stand one after another in flat arrays of rows; `lengths` says how many rows each has. A window of `length`
rows starts at every `stride`-th row of a series and never reaches into the next: a series of n rows gives
⌊(n − length) / stride⌋ + 1 windows, or none when it is shorter than one.

Shapes: R rows of all series, N windows, T = `length`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnarena.core.errors import BadOption


@dataclass(frozen=True)
class Windows:
    """Where windows lie: `starts` (N,), the first row of each, and `series` (N,), the series it was cut from."""

    starts: np.ndarray
    series: np.ndarray
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def last(self) -> np.ndarray:
        """(N,) the last row of each window."""
        return self.starts + self.length - 1

    def of(self, rows: np.ndarray) -> np.ndarray:
        """(R, …) rows as (N, T, …) windows."""
        if not len(self):
            return np.empty((0, self.length, *rows.shape[1:]), rows.dtype)
        # A window as wide as the row keeps the axes in the order (N, T, …), so that one copy is enough.
        view = np.lib.stride_tricks.sliding_window_view(rows, (self.length, *rows.shape[1:]))
        return np.ascontiguousarray(view.reshape(len(view), self.length, *rows.shape[1:])[self.starts])


def window_counts(lengths: np.ndarray, length: int, stride: int) -> np.ndarray:
    """How many windows each series gives."""
    return np.maximum((np.asarray(lengths, np.int64) - length) // stride + 1, 0)


def cut(lengths: np.ndarray, length: int, stride: int, most: int) -> Windows:
    """The first `most` windows, series by series."""
    counts = window_counts(lengths, length, stride)
    series = np.repeat(np.arange(len(counts)), counts)[:most]
    within = np.arange(len(series)) - (np.cumsum(counts) - counts)[series]
    starts = (np.cumsum(lengths) - lengths)[series] + within * stride
    return Windows(starts, series, length)


def check_windows(task: str, samples: int, length: int, stride: int) -> None:
    """The options that all tasks on windows share."""
    for name, value in (("samples", samples), ("length", length), ("stride", stride)):
        if value < 1:
            raise BadOption(f"{task}: option {name!r} takes a whole number above 0, not {value}.")


def check_choice(task: str, option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadOption(f"{task}: option {option!r} takes {' or '.join(known)}, not {value}.")


def check_any(task: str, windows: Windows, lengths: np.ndarray) -> None:
    """A task without a single window has asked for too long ones."""
    if not len(windows):
        longest = max(lengths, default=0)
        raise BadOption(f"{task}: no series is as long as length={windows.length}; the longest has {longest} rows.")
