"""How a Triton kernel reads memory and writes it: pointers to every number of a tile, and what is there at all.

Memory is (seeds, samples, steps, …), see `memory`. A program has a seed, and a sample or a block of them, its `row`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nnarena.kernels.compiler.index import Axis, Index
from nnarena.kernels.compiler.kernel import Kernel, Sum, name_of
from nnarena.kernels.compiler.tiles import Source, Tile

LEAST = 8  # numbers of a sample that are announced: of fewer, what is read at once has those of many steps


class Access:
    """Lines of a kernel, those that read and write among them.

    kept        weights that stay in registers
    again       constants that are read at every step
    copied      of these, matrices that are added to one of every sample, and read for each
    spread      sizes of tiles that are read or written in twos
    multiplied  sizes of what the matrix units make
    unsure      memory that not all threads may have written yet
    """

    def __init__(self, kernel: Kernel, threads: int) -> None:
        self.kernel, self.program, self.plan, self.threads = kernel, kernel.program, kernel.plan, threads
        self.rows = self.plan.rows
        self.next_step = "tl.maximum(T - 2 - step, 0)" if kernel.backward else "tl.minimum(step + 1, T - 1)"
        self.lines: list[str] = []
        self.indent = 1
        self.kept: set[Tile] = set()
        self.again: set[Tile] = set()
        self.copied: set[Tile] = set()
        self.spread: set[tuple[int, ...]] = set()
        self.multiplied: list[list[int]] = []
        self.unsure: set[str] = set()

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def load(self, tile: Tile, time: str) -> str:
        source, index = tile.detail
        pointer, inside = self.place(source, index, tile.axes, time)
        if source.last:
            everywhere = f" + tl.zeros({self.shape(tile.axes)}, tl.int32)" if tile.axes else ""
            inside.append(f"(({time}) % {source.every}{everywhere} == {source.every} - 1)")
        if source.dead and self.rows > 1:
            inside.append(self.alive(tile.axes))
        kind = "0" if source.kind in ("int", "bool") else "0.0"
        if tile in self.kept:
            everywhere = f"tl.full({self.shape(tile.axes)}, 1, tl.int1)"
            text = f"kept({pointer}, {' & '.join(inside) or everywhere}, precision)"
        elif tile in self.copied:
            text = self.copy(source, index, tile.axes)
        elif tile.op != "pick" and (like := self.like(source, index, tile.axes, time)):
            there = " & ".join(inside if source.dead and self.rows > 1 else [*inside, self.alive(tile.axes)])
            text = f"fetch({pointer}, {there}, {like}, direct)"
        elif self.is_turned(tile):
            around = f"around({self.spread_over(tile.axes)})"
            text = f"fetch_singly({pointer}, {' & '.join([*inside, around])}, {time}, direct)"
        elif self.singly(source, tile.axes) and (source.time or tile in self.again):
            there = " & ".join(inside) or self.everywhere(tile.axes)
            text = f"fetch_singly({pointer}, {there}, {time}, direct)"
        else:
            text = f"tl.load({pointer}, mask={' & '.join(inside)}, other={kind})" if inside else f"tl.load({pointer})"
        return f"{text} != 0" if source.kind == "bool" else text

    def loaded(self, source: Source, index: Index, axes: tuple[Axis, ...], live: bool) -> str:
        """What is carried, as it is at the start; gradients of samples that are not there are zero."""
        with_rows = self.with_rows(axes)
        pointer, inside = self.place(source, index, with_rows, "0")
        if live and self.rows > 1:
            inside.append(self.alive(with_rows))
        return f"tl.load({pointer}, mask={' & '.join(inside)}, other=0.0)" if inside else f"tl.load({pointer})"

    def stored(self, source: Source, index: Index, text: str, axes: Sequence[Axis], time: str = "0") -> None:
        with_rows = self.with_rows(axes)
        pointer, inside = self.place(source, index, with_rows, time)
        self.unsure.add(source.name)
        if self.rows > 1:
            inside.append(self.alive(with_rows))
        if like := self.like(source, index, with_rows, time):
            self.line(f"put({pointer}, {text}, {' & '.join(inside)}, {like}, direct)")
            return
        if self.singly(source, with_rows):
            there = " & ".join(inside) or f"tl.full({self.shape(with_rows)}, 1, tl.int1)"
            self.line(f"put_singly({pointer}, {text}, {there}, direct)")
            return
        mask = f", mask={' & '.join(inside)}" if inside else ""
        self.line(f"tl.store({pointer}, {text}{mask})")

    def stored_sum(self, total: Sum, text: str) -> None:
        """Every program has its own place: sums of programs are added afterwards, always in the same order."""
        pointer, inside = self.place(total.source, total.index, total.axes, "0")
        number = "tl.program_id(0).to(tl.int64)"
        if self.kernel.apart:
            number = f"(tl.program_id(2) * tl.num_programs(0) + {number})"
        pointer = f"{pointer} + {number} * tl.num_programs(1) * {math.prod(total.source.shape)}"
        mask = f", mask={' & '.join(inside)}" if inside else ""
        self.line(f"tl.store({pointer}, {text}{mask})")

    def expect(self, tiles: list[Tile]) -> None:
        """What a program reads of its samples a step later is announced, from the first number to the last.

        Memory takes as long as half a step, and what there is to read on the way back does not fit into registers.
        """
        reads = [tile.detail for tile in tiles if tile.op == "load" and not tile.steady and tile.detail[0].rows]
        if not self.plan.announce or not reads:
            return
        self.line(f"soon = {self.next_step}")
        for name in dict.fromkeys(source.name for source, _ in reads):
            source = next(source for source, _ in reads if source.name == name)
            bounds = [span(other, index) for other, index in reads if other.name == name]
            begin, end = min(low for low, _ in bounds), max(high for _, high in bounds)
            if end - begin < LEAST:
                continue
            place = f"{name} + {self.moment(source, '(seed * B + first)', 'soon')} * {source.numbers} + {begin}"
            distance = f"{self.length(source)}, {source.numbers}"
            self.line(f"expect({place}, {distance}, present, {end - begin}, {self.rows}, {self.threads}, precision)")

    def place(self, source: Source, index: Index, axes: Sequence[Axis], time: str) -> tuple[str, list[str]]:
        """A pointer for every element, and the conditions under which it is there."""
        terms, inside = [str(source.start)] * bool(source.start), []
        stride = math.prod(source.shape)
        for part, size in zip(index, source.shape, strict=True):
            stride //= size
            if part.offset:
                terms.append(str(part.offset * stride))
            for axis, step in part.terms:
                terms.append(f"{self.along(axis, axes)} * {step * stride}")
                if axis.size != axis.pad:
                    inside.append(f"({self.along(axis, axes)} < {axis.size})")
        if source.rows:
            text = f"{self.moment(source, 'row', time)} * {source.numbers}"
            if self.rows > 1:
                text = f"({text})[{', '.join([':'] + ['None'] * (len(axes) - 1))}]" if len(axes) > 1 else f"({text})"
        else:
            text = f"seed * {source.numbers}"
        return " + ".join([source.name, text, *terms]), inside

    def moment(self, source: Source, row: str, time: str) -> str:
        """The number of what a sample has at a time."""
        if not source.time:
            return row
        if source.every != 1:
            time = f"({time}) // {source.every}"
        return f"({row} * {self.length(source)} + {time}{f' + {source.shift}' if source.shift else ''})"

    def length(self, source: Source) -> str:
        """How many of what every step has, or several steps share, a sample has."""
        if source.every != 1:
            return f"(T // {source.every})"
        return f"(T + {source.extra})" if source.extra else "T"

    def singly(self, source: Source, axes: Sequence[Axis]) -> bool:
        """Whether threads read and write single numbers, as they have or want them, where samples are matrices: all of
        one sample, of a block of them the vectors, and constants that are added to all."""
        if not self.plan.matrices or source.kind != "float":
            return False
        if not source.rows:
            return len(axes) == 2 or (self.kernel.apart and len(axes) == 1)
        return source.time and (len(axes) > 0 if self.rows == 1 else len(axes) == 2)

    def like(self, source: Source, index: Index, axes: Sequence[Axis], time: str) -> str | None:
        """What a block of samples carries in the shape of a tile that is read or written in twos; None if it is not."""
        often = source.time and time in ("t", "later")
        if self.rows == 1 or len(axes) < 2 or not often or not in_twos(source, index) or is_turned(index, axes):
            return None
        sizes = [axis.pad for axis in axes]
        if self.plan.aside and sizes not in self.multiplied:  # threads have rows or columns of matrices that meet
            return None
        for held in self.kernel.held:
            if [axis.pad for axis in self.with_rows(held.axes)] == sizes:
                return name_of(held.carry, held.piece)
        return self.spread_over(axes) if self.plan.matrices and len(sizes) == 3 else None

    def copy(self, source: Source, index: Index, axes: Sequence[Axis]) -> str:
        """A constant, for every sample of a block, or every warp. It seems to depend on the time: read before the loop,
        it would have to be kept."""
        with_rows = self.with_rows(axes)
        pointer, inside = self.place(source, index, with_rows, "t")
        for batch in self.program.batch_axes:
            pointer = f"{pointer} + {self.along(batch, with_rows)} * 0"
        there = " & ".join([*inside, f"(t + tl.zeros({self.shape(with_rows)}, tl.int32) >= 0)"])
        return f"fetch({pointer}, {there}, {self.spread_over(with_rows)}, direct)"

    def lies_in_twos(self, tile: Tile) -> bool:
        source, index = tile.detail
        return in_twos(source, index) and not is_turned(index, tile.axes)

    def is_turned(self, tile: Tile) -> bool:
        """Whether it is a matrix of every sample that is read the other way round than it lies in memory."""
        source, index = tile.detail
        matrix = self.plan.matrices and self.rows > 1 and len(tile.axes) == 3 and source.time and source.kind == "float"
        return matrix and is_turned(index, tile.axes)

    def sizes(self, axes: Iterable[Axis]) -> tuple[int, ...]:
        """Of all dimensions of a tile with these axes."""
        return tuple(map(self.own, axes))

    def own(self, axis: Axis) -> int:
        """Numbers of an axis that a tile has."""
        return axis.pad

    def spread_over(self, axes: Iterable[Axis]) -> str:
        """A tile of this shape that is spread over the threads as the matrix units leave a product."""
        sizes = self.sizes(axes)
        self.spread.add(sizes)
        return f"like_{'_'.join(map(str, sizes))}"

    def everywhere(self, axes: Sequence[Axis]) -> str:
        return f"tl.full({self.shape(axes)}, 1, tl.int1)"

    def alive(self, axes: Sequence[Axis]) -> str:
        return "live" if len(axes) == 1 else f"live[{', '.join([':'] + ['None'] * (len(axes) - 1))}]"

    def with_rows(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return (*self.program.batch_axes, *axes)

    def shape(self, axes: Iterable[Axis]) -> str:
        sizes = [str(axis.pad) for axis in axes]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def along(self, axis: Axis, axes: Sequence[Axis]) -> str:
        text = f"tl.arange(0, {axis.pad})"
        return text if len(axes) == 1 else f"{text}[{', '.join(':' if other is axis else 'None' for other in axes)}]"


def in_twos(source: Source, index: Index) -> bool:
    """Whether what is read lies in pairs, each at an even place and whole."""
    if source.kind != "float":
        return False
    stride, even = math.prod(source.shape), source.numbers % 2 == 0 and source.start % 2 == 0
    for part, size in zip(index, source.shape, strict=True):
        stride //= size
        even &= part.offset * stride % 2 == 0
        even &= all(step * stride % 2 == 0 or (step * stride == 1 and axis.size % 2 == 0) for axis, step in part.terms)
    return even and any(step == 1 for _, step in index[-1].terms)


def is_turned(index: Index, axes: Sequence[Axis]) -> bool:
    """Whether a tile's last axis is not the one whose numbers are neighbours in memory."""
    return all(axis is not axes[-1] for axis, _ in index[-1].terms)


def span(source: Source, index: Index) -> tuple[int, int]:
    """The numbers of a sample that are read with an index: from, to."""
    low, high, stride = source.start, source.start + 1, 1
    for part, size in zip(reversed(index), reversed(source.shape), strict=True):
        low, high, stride = low + part.low * stride, high + part.high * stride, stride * size
    return low, high
