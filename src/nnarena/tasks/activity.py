"""What a person does, from sensors that they wear."""

from __future__ import annotations

from typing import Literal

import numpy as np

from nnarena.core.components import task
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.data import load
from nnarena.data.activity import ACTIVITIES
from nnarena.tasks.windows import check_any, check_choice, check_windows, cut

TICKS = 10_000_000  # UCI's clock counts in units of 100 ns
WATCH_RATE = 50  # frames a second
TAGS = 4
FEATURES = {"uci": TAGS + 3, "watch": 6}
CLASSES = 7
# The eleven activities of the UCI file as seven classes.
FOLD = {
    "lying": 0,
    "lying down": 0,
    "sitting": 1,
    "sitting down": 1,
    "standing up from lying": 2,
    "standing up from sitting": 2,
    "standing up from sitting on the ground": 2,
    "walking": 3,
    "falling": 4,
    "on all fours": 5,
    "sitting on the ground": 6,
}


@task("activity", reference="Kaluža et al. 2010; watch: Burns et al. 2018, https://arxiv.org/abs/1802.01489")
class Activity(Task):
    """Tell what a person is doing from 64 readings of the sensors that they wear.

    source=uci     x: (length, 7), which of four tags was read (one-hot) and its position x, y, z; y: lying, sitting,
                   standing up, walking, falling, on all fours or sitting on the ground, at the window's last reading
    source=watch   x: (length, 6), accelerometer and gyroscope of a smartwatch; y: one of seven shoulder exercises

    Windows start at every `stride`-th reading of a series, series in the order of their first reading, and the first
    `samples` are taken. A series is one person's one run through the script (uci, 25 series), or one recording of one
    exercise (watch, 140 series; not a task of the published arena, but small and free).

    The published windows overlap and were shuffled before the split, so that test windows share readings with
    training windows; `split=series` keeps the windows of a series together, and `split=published` does as was
    published. The elapsed time is in seconds, and 0 at the first reading of a series; a clock that steps back
    counts as no time.

    Options:
        samples: samples at most
        length: readings a window
        stride: readings from the start of a window to the start of the next
        split: series keeps all windows of a series on one side of the split; published shuffles them all
        elapsed: give the seconds since the reading before as a second input
        source: uci is the published data set; watch has smartwatch recordings of exercises
    """

    def __init__(
        self,
        *,
        samples: int = 40_000,
        length: int = 64,
        stride: int = 4,
        split: Literal["series", "published"] = "series",
        elapsed: bool = False,
        source: Literal["uci", "watch"] = "uci",
    ) -> None:
        check_windows("activity", samples, length, stride)
        check_choice("activity", "split", split, ("series", "published"))
        check_choice("activity", "source", source, ("uci", "watch"))
        self.most, self.length, self.stride, self.split, self.source = samples, length, stride, split, source
        self.spec = TaskSpec(
            input_shape=(length, FEATURES[source]), output_size=CLASSES, target="class", timespans=elapsed
        )

    def check(self) -> None:
        load("activity" if self.source == "uci" else "watch")

    def samples(self, rng: np.random.Generator) -> Samples:
        readings, classes, seconds, lengths = uci() if self.source == "uci" else watch()
        windows = cut(lengths, self.length, self.stride, self.most)
        check_any("activity", windows, lengths)
        return Samples(
            windows.of(readings),
            classes[windows.last],
            windows.of(seconds) if self.spec.timespans else None,
            windows.series if self.split == "series" else None,
        )


Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # (R, F) readings, (R,) classes, (R,) seconds, lengths


def uci() -> Table:
    """The positions of the tags."""
    arrays = load("activity")
    readings = np.concatenate([np.eye(TAGS, dtype=np.float32)[arrays["tag"]], arrays["position"]], axis=1)
    classes = np.array([FOLD[name] for name in ACTIVITIES], np.int64)[arrays["activity"]]
    ticks = np.maximum(np.diff(arrays["time"], prepend=0), 0)
    return readings, classes, from_zero(ticks / TICKS, arrays["length"]), arrays["length"]


def watch() -> Table:
    """The recordings of the smartwatch."""
    arrays = load("watch")
    length = arrays["length"]
    seconds = np.full(len(arrays["frames"]), 1 / WATCH_RATE)
    return arrays["frames"], np.repeat(arrays["y"], length), from_zero(seconds, length), length


def from_zero(seconds: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(R,) seconds as float32, 0 at the first reading of every series."""
    seconds = seconds.astype(np.float32)
    seconds[np.cumsum(lengths) - lengths] = 0
    return seconds
