"""What comes of compiling a step: kernels, the memory they work on, and what is left to do after them."""

from __future__ import annotations

from dataclasses import dataclass

from nnarena.kernels.compiler.plan import Plan


@dataclass(frozen=True)
class Place:
    """Where a factor lies: the memory, how many numbers of each step come before it, and how many rows it has.

    `pitch` is from one row to the next; 0 if they lie side by side.
    """

    name: str
    start: int = 0
    rows: int = 1
    pitch: int = 0


@dataclass(frozen=True)
class Part:
    """Numbers of every step that lie in one place, and how many of them a row has."""

    place: Place
    width: int

    def within(self, other: Part) -> bool:
        """Whether all of it is a part of another one; of several rows, only all of each."""
        if self == other:
            return True
        begin, end = self.place.start, self.place.start + self.width
        alike = self.place.name == other.place.name and self.place.rows == other.place.rows == 1
        return alike and other.place.start <= begin and end <= other.place.start + other.width


@dataclass(frozen=True)
class Gemm:
    """A gradient of a constant that is a product over samples and steps: scale · leftᵀ · right, or its transpose."""

    constant: int
    left: Place
    right: Place
    turned: bool
    scale: float

    def sides(self, shape: tuple[int, ...]) -> list[Part]:
        """What it reads for the rows and for the columns of a constant of this shape."""
        places = (self.right, self.left) if self.turned else (self.left, self.right)
        return [Part(place, size) for place, size in zip(places, shape, strict=True)]


@dataclass(frozen=True)
class Total:
    """A gradient of a constant that is a sum over samples, steps and the rows that a sample has.

    Of what lies in some `parts`, which belong side by side; or of the numbers of an input, a few, times each of those.
    """

    constant: int
    parts: tuple[Part, ...]
    times: int | None = None  # the input


@dataclass(frozen=True)
class Text:
    """A kernel as it is written down: its source, the memory it is called with, and how many warps run it."""

    source: str
    arguments: list[str]
    warps: int


@dataclass(frozen=True)
class Compiled:
    """The kernels of a step, and the memory they work on: shapes of one sample at one step, by name."""

    forward: Text
    inference: Text
    backward: Text
    sums: list[Text]  # each of gradients of constants, of what the loops have written
    shapes: dict[str, tuple[int, ...]]
    output: str  # where the output lies: in memory of its own, or in the history of a part of the state,
    output_shift: int  # as that is before each step or, one later, after it
    repeats: int  # steps that are taken with one input
    gemms: list[Gemm]
    totals: list[Total]
    sizes: dict[Part | str, str]  # where it lies how large a factor is, or an input, if that is known
    plan: Plan
