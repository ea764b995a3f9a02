"""Which tiles share a loop on a CPU, and where they lie.

A tile that a register holds for a moment need not be written to memory. So tiles of the same sizes that need nothing of
each other but number for number are computed in one nest of loops. What another nest reads lies in a room that a thread
has to itself, and gives its place to others when it was read for the last time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from nnarena.kernels.compiler.index import Axis
from nnarena.kernels.compiler.program import Program
from nnarena.kernels.compiler.tiles import Ref, Tile, Value

ALIGNED = 16  # numbers: what is read at once begins at a multiple


@dataclass(eq=False)
class Nest:
    """Loops of these sizes over tiles, or over the one that is reduced.

    dims   which of the loops runs along each axis of a tile
    """

    sizes: tuple[int, ...]
    lanes: bool
    tiles: list[Tile] = field(default_factory=list)
    dims: dict[Tile, tuple[int, ...]] = field(default_factory=dict)
    reduces: bool = False


def own_axes(axes: Iterable[Axis], program: Program) -> tuple[Axis, ...]:
    """The axes of one sample."""
    return tuple(axis for axis in axes if axis is not program.batch)


def sizes_of(axes: Iterable[Axis]) -> tuple[int, ...]:
    return tuple(axis.size for axis in axes)


def refs_of(values: Iterable[Value]) -> list[Ref]:
    return [value for value in values if isinstance(value, Ref)]


class Nests:
    """All tiles of a step in nests, in an order in which they can be computed.

    inlined   tiles that are computed within the one that needs them, a sum
    """

    def __init__(self, program: Program, tiles: list[Tile], results: list[Value]) -> None:
        self.program = program
        self.users: dict[Tile, list[Tile | None]] = {tile: [] for tile in tiles}
        for tile in tiles:
            for ref in refs_of(tile.args):
                self.users[ref.tile].append(tile)
        for ref in refs_of(results):
            self.users[ref.tile].append(None)
        self.inlined: set[Tile] = set()
        for tile in reversed(tiles):  # those that need others first
            if tile.op in ("map", "equals") and not tile.steady and self._within_its_user(tile):
                self.inlined.add(tile)
        self.nests: list[Nest] = []
        self.place: dict[Tile, int] = {}
        for tile in tiles:
            if tile.op not in ("load", "carry") and tile not in self.inlined:
                self._put(tile)

    def _within_its_user(self, tile: Tile) -> bool:
        if len(self.users[tile]) != 1 or (user := self.users[tile][0]) is None:
            return False
        if user.op in ("sum", "max"):
            return True
        return user in self.inlined and len(user.axes) == len(tile.axes)

    def reads(self, tile: Tile) -> list[Ref]:
        """What a tile reads, and what those within it do, as the latter call it."""
        return [
            ref
            for arg in refs_of(tile.args)
            for ref in ([arg] if arg.tile not in self.inlined else self.reads(arg.tile))
        ]

    def _put(self, tile: Tile) -> None:
        axes = own_axes(tile.axes, self.program)
        lanes = self.program.batch in tile.axes
        placed = [ref for ref in self.reads(tile) if ref.tile in self.place]
        reduces = tile.op not in ("map", "equals")
        earliest = max((self.place[ref.tile] + self.nests[self.place[ref.tile]].reduces for ref in placed), default=0)
        for number in range(earliest, 0 if reduces or tile.steady else len(self.nests)):
            nest = self.nests[number]
            if nest.reduces or nest.lanes != lanes or sorted(nest.sizes) != sorted(sizes_of(axes)):
                continue
            if (dims := self._dims(tile, axes, nest)) is not None:
                nest.tiles.append(tile)
                nest.dims[tile], self.place[tile] = dims, number
                return
        nest = Nest(sizes_of(axes), lanes, [tile], {tile: tuple(range(len(axes)))}, reduces)
        self.place[tile] = len(self.nests)
        self.nests.append(nest)

    def _dims(self, tile: Tile, axes: tuple[Axis, ...], nest: Nest) -> tuple[int, ...] | None:
        """Which loops of a nest run along these axes, if the tile can be computed there."""
        found: dict[Axis, int] = {}
        for ref in refs_of(tile.args):
            if ref.tile not in nest.dims:
                continue
            own = own_axes(ref.axes, self.program)
            if len(own) != len(axes):
                return None
            for axis, dim in zip(own, nest.dims[ref.tile], strict=True):
                if found.setdefault(axis, dim) != dim:
                    return None
        dims = tuple(found.get(axis, -1) for axis in axes) if found else tuple(range(len(axes)))
        fits = sorted(dims) == list(range(len(axes))) and all(
            nest.sizes[dim] == axis.size for dim, axis in zip(dims, axes, strict=True)
        )
        return dims if fits else None

    def rests(self, tile: Tile) -> bool:
        """Whether a tile must lie in memory: somebody reads it in another nest."""
        here = self.place[tile]
        return (
            any(user is not None and self.place[self._computed_in(user)] != here for user in self.users[tile])
            or self.nests[here].reduces
        )

    def _computed_in(self, tile: Tile) -> Tile:
        while tile in self.inlined:
            (tile,) = self.users[tile]  # type: ignore[assignment]
        return tile

    def last_read(self, tile: Tile) -> int:
        """The last nest that reads a tile."""
        places = [self.place[self._computed_in(user)] for user in self.users[tile] if user is not None]
        return max(places, default=self.place[tile])


class Room:
    """Places in the memory of a thread, in numbers."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []  # begin and end, in order

    def take(self, numbers: int) -> int:
        """The first place that is large enough, or one behind all others."""
        numbers = math.ceil(numbers / ALIGNED) * ALIGNED
        for place, (begin, end) in enumerate(self.free):
            if end - begin >= numbers:
                self.free[place : place + 1] = [(begin + numbers, end)] if end - begin > numbers else []
                return begin
        self.size += numbers
        return self.size - numbers

    def give_back(self, begin: int, numbers: int) -> None:
        self.free.append((begin, begin + math.ceil(numbers / ALIGNED) * ALIGNED))
        self.free.sort()
        joined: list[tuple[int, int]] = []
        for start, end in self.free:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        self.free = joined
