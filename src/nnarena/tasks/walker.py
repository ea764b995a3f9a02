"""The next state of a simulated walker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from nnarena.core.components import task
from nnarena.core.errors import BadOption, DataError
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.data import load
from nnarena.tasks.windows import check_any, check_choice, check_windows, cut, window_counts

SIZE = 17
PUBLISHED_SKIP = 0.1
# Fresh traces: as long as the published ones are on average, and actions that change over about ten frames.
FRAMES = 640
SMOOTHING = 0.9


@task("walker", reference="Lechner, Hasani 2020, https://arxiv.org/abs/2006.04418")
class Walker(Task):
    """Predict the next state of a simulated walker from the 64 before.

    x: (length, 17), the joint angles and velocities of MuJoCo's Walker2d; y: the 17 values of the frame that follows;
    mean squared error. Windows start at every `stride`-th frame of a trace, and the first `samples` are taken.

    With `frame_skip`, frames are dropped at random, and a second input says for each frame that is kept how many
    frames have passed since the one before; the target is still the very next frame, kept or not.

    Two things differ from the published arena. Its windows overlap and were shuffled before the split, so that test
    windows share frames with training windows; `split=series` keeps the windows of a trace together, and
    `split=published` does as was published. And the traces stand in numeric order, not in the file system's.

    Guessing that nothing moves, the next frame being the last, gives an error of 4.60 on the first 40,000 windows, and
    of 4.28 on all frames of the traces (`pytest -m data tests/tasks/test_walker.py` measures both).

    Options:
        samples: samples at most
        length: frames a window
        stride: frames from the start of a window to the start of the next
        split: series keeps all windows of a trace on one side of the split; published shuffles them all
        frame_skip: share of the frames that is dropped; true means the published 0.1
        source: published takes the traces of 2020; gymnasium simulates fresh ones with random actions
    """

    def __init__(
        self,
        *,
        samples: int = 40_000,
        length: int = 64,
        stride: int = 4,
        split: Literal["series", "published"] = "series",
        frame_skip: bool | float = False,
        source: Literal["published", "gymnasium"] = "published",
    ) -> None:
        check_windows("walker", samples, length, stride)
        check_choice("walker", "split", split, ("series", "published"))
        check_choice("walker", "source", source, ("published", "gymnasium"))
        skip = PUBLISHED_SKIP if frame_skip is True else float(frame_skip)
        if not 0 <= skip < 1:
            raise BadOption(f"walker: option 'frame_skip' takes a share from 0 to below 1, not {frame_skip}.")
        self.most, self.length, self.stride = samples, length, stride
        self.split, self.skip, self.source = split, skip, source
        self.spec = TaskSpec(input_shape=(length, SIZE), output_size=SIZE, target="values", timespans=skip > 0)

    def check(self) -> None:
        if self.source == "gymnasium":
            _walker2d().close()
        else:
            load("walker")

    def samples(self, rng: np.random.Generator) -> Samples:
        """Trace by trace, until there are windows enough."""
        kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        enough = 0
        for trace in self._traces(rng):
            kept.append(drop_frames(trace, self.skip, rng))
            enough += window_counts(np.array([len(kept[-1][0])]), self.length, self.stride)[0]
            if enough >= self.most:
                break
        inputs, spans, targets = (np.concatenate(part) for part in zip(*kept, strict=True))
        lengths = np.array([len(part) for part, _, _ in kept])
        windows = cut(lengths, self.length, self.stride, self.most)
        check_any("walker", windows, lengths)
        return Samples(
            windows.of(inputs),
            targets[windows.last],
            windows.of(spans) if self.spec.timespans else None,
            windows.series if self.split == "series" else None,
        )

    def _traces(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        if self.source == "gymnasium":
            # Long enough for a window even when many frames are dropped.
            return simulated_traces(rng, max(FRAMES, round(2 * (self.length + 1) / (1 - self.skip))))
        arrays = load("walker")
        return iter(np.split(arrays["states"], np.cumsum(arrays["length"])[:-1]))


def drop_frames(trace: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A trace (T, 17) as inputs (K, 17), frames since the last input (K,), and the frames that follow (K, 17).

    Every frame but the last can be an input; each is dropped with probability `share`. The count starts before the
    first frame, so that without dropping it is 1 throughout.
    """
    kept = np.arange(len(trace) - 1)
    if share:
        kept = kept[rng.random(len(kept)) > share]
    spans = np.diff(kept, prepend=-1).astype(np.float32)
    return trace[kept], spans, trace[kept + 1]


def simulated_traces(rng: np.random.Generator, frames: int) -> Iterator[np.ndarray]:
    """Endless traces (frames, 17) of Walker2d-v5 under smooth random actions; it may fall and go on lying.

    The actions are white noise through a low-pass filter, scaled to a standard deviation of one half and clipped to
    the −1 … 1 that the motors can do. The same generator gives the same traces with the same version of MuJoCo.
    """
    environment = _walker2d()
    try:
        size = environment.action_space.shape[0]
        while True:
            state, _ = environment.reset(seed=int(rng.integers(2**31)))
            noise = rng.normal(scale=0.5 * np.sqrt((1 + SMOOTHING) / (1 - SMOOTHING)), size=(frames, size))
            action = np.zeros(size)
            trace = np.empty((frames, SIZE), np.float32)
            for step in range(frames):
                trace[step] = state
                action = SMOOTHING * action + (1 - SMOOTHING) * noise[step]
                state = environment.step(np.clip(action, -1, 1))[0]
            yield trace
    finally:
        environment.close()


def _walker2d() -> Any:
    try:
        from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

        return Walker2dEnv(terminate_when_unhealthy=False)
    except Exception as error:  # where MuJoCo is missing, Gymnasium raises an error of its own, not an ImportError
        wanted = 'pip install "nnarena[control]"'
        raise DataError(f"walker[source=gymnasium] needs Gymnasium with MuJoCo ({error}): `{wanted}`.") from error
