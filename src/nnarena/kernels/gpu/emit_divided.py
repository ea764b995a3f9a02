"""From tiles to the text of a Triton kernel whose warps have all of a sample's matrices each, and divide what is wide.

Warps that share a small matrix exchange it in front of every product, and wait for each other each time. Here every
warp computes all of it by itself: what the matrix units leave of one product is what they want as the left side of the
next. Only a wide dimension, such as the units between two dense layers, is divided. A warp has its part of the units,
and what comes of them is added up, which is the one time in a step that warps wait.

A tile has one more dimension in front, one number of it for each warp. What every warp has, one of them writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnarena.kernels.compiler.index import Axis, Index
from nnarena.kernels.compiler.kernel import Kernel
from nnarena.kernels.compiler.tiles import Ref, Source, Tile, Value
from nnarena.kernels.gpu.access import in_twos, is_turned
from nnarena.kernels.gpu.emit import HEADER, WARP, Writer

IMPORTS = """
from nnarena.kernels.gpu.maths import for_each, spread_by_warp

"""


def emit_divided(kernel: Kernel, warps: int) -> str:
    return HEADER.rstrip() + IMPORTS + "\n" + Divided(kernel, warps).text() + "\n"


class Divided(Writer):
    """wide     numbers of a dimension from which on it is divided: of two in a product only one can be
    partial  products of parts of a wide dimension, and what they are added to
    places   where a dimension of a weight that is being read lies, if not where others do
    writer   the warp that wrote last
    """

    spreading = "spread_by_warp"
    lead = 1

    def __init__(self, kernel: Kernel, warps: int) -> None:
        super().__init__(kernel, warps)
        self.warps = self.threads // WARP
        self.wide: float = self.plan.divided
        self.partial: set[Tile] = set()
        self.places: dict[Axis, str] = {}
        self.writer = 0

    def prepare(self, tiles: list[Tile]) -> None:
        products = [[axis.pad for group in tile.detail for axis in group] for tile in tiles if tile.op == "dot"]
        self.wide = max([self.wide, *(2 * sorted(pads)[-2] for pads in products if sorted(pads)[-2] >= self.wide)])
        for last in (tile for tile in tiles if tile.op == "dot" and not tile.open):
            chain = [last]
            while len(chain[-1].args) > 2:
                chain.append(chain[-1].args[2].tile)
            if any(self.is_divided(tile.detail[1]) for tile in chain):
                self.partial.update(chain)

    def far(self, tiles: list[Tile]) -> set[Tile]:
        """Vectors are few numbers; the way back has no registers even for them."""
        vectors = {tile for tile in tiles if tile.op == "load" and not tile.steady and len(tile.axes) < 2}
        return set() if self.kernel.backward else vectors

    # Dimensions

    def is_wide(self, axis: Axis) -> bool:
        return axis.pad >= self.wide

    def is_divided(self, axes: Iterable[Axis]) -> bool:
        return any(map(self.is_wide, axes))

    def own(self, axis: Axis) -> int:
        """Numbers of a dimension that a warp has."""
        return axis.pad // self.warps if self.is_wide(axis) else axis.pad

    def sizes(self, axes: Iterable[Axis]) -> tuple[int, ...]:
        return self.warps, *map(self.own, axes)

    def shape(self, axes: Iterable[Axis]) -> str:
        sizes = self.sizes(axes)
        return f"({', '.join(map(str, sizes))})" if len(sizes) > 1 else "()"

    def along(self, axis: Axis, axes: Sequence[Axis]) -> str:
        if axis in self.places:
            return self.places[axis]
        places = ["None", *(":" if other is axis else "None" for other in axes)]
        text = f"tl.arange(0, {self.own(axis)})[{', '.join(places)}]"
        return f"({self.every_warp(axes)} * {self.own(axis)} + {text})" if self.is_wide(axis) else text

    def every_warp(self, axes: Sequence[Axis]) -> str:
        return f"tl.arange(0, {self.warps})[{', '.join([':'] + ['None'] * len(axes))}]"

    # Values

    def whole(self, value: Value, axes: Sequence[Axis]) -> str:
        return value.tile.name if isinstance(value, Ref) and not axes else super().whole(value, axes)

    def reduction(self, tile: Tile) -> str:
        (ref,) = tile.args
        text = self.masked(ref, tile.detail, "0.0" if tile.op == "sum" else "float('-inf')")
        for place in sorted((ref.axes.index(axis) for axis in tile.detail), reverse=True):
            text = f"tl.{tile.op}({text}, {place + 1})"
        if not tile.axes:
            return f"tl.{tile.op}({text}, 0){'' if self.is_divided(tile.detail) or tile.op == 'max' else self.once}"
        return self.together(text, tile.op) if self.is_divided(tile.detail) else text

    @property
    def once(self) -> str:
        """What every warp has, counted once."""
        return f" * {1 / self.warps}"

    def together(self, text: str, op: str = "sum") -> str:
        """What all warps have found, for each of them."""
        return f"for_each(tl.{op}({text}, 0, keep_dims=True), {self.warps})"

    def dot(self, tile: Tile) -> str:
        rows, inner, columns = tile.detail
        left = self.matrix(tile.args[0], (), rows, inner, inner)
        right = self.matrix(tile.args[1], (), inner, columns, inner)
        if tile in self.partial and not self.is_divided(inner):  # every warp has all of it
            left = f"tl.where(tl.arange(0, {self.warps})[:, None, None] == 0, {left}, 0.0)"
        text = self.product(tile, tile.args[2:], left, right)
        if tile.open:
            return text
        text = self.together(text) if tile in self.partial else text
        return text if len(rows) == len(columns) == 1 else f"tl.reshape({text}, {self.shape((*rows, *columns))})"

    def product(self, tile: Tile, before: tuple[Ref, ...], left: str, right: str) -> str:
        factors = f"{left}, {right}, precision"
        text = f"continued({before[0].tile.name}, {factors})" if before else f"begun({factors}, 1)"
        return text if tile.open else f"added({text})"

    # Memory

    def load(self, tile: Tile, time: str) -> str:
        if tile.steady and tile not in self.again and len(tile.axes) == 2:
            return self.weights(tile)
        return super().load(tile, time)

    def weights(self, tile: Tile) -> str:
        """A matrix for each warp. In shared memory its dimensions lie as threads have read them, those of one register
        first: so that one warp's lie together, the warps are a part of the dimension whose numbers are neighbours."""
        _, index = tile.detail
        fast = next((axis for axis, step in index[-1].terms if step == 1), tile.axes[-1])
        (slow,) = (axis for axis in tile.axes if axis is not fast)
        width, height = self.own(fast), self.own(slow)
        column, row = f"tl.arange(0, {self.warps * width})[None, :]", f"tl.arange(0, {height})[:, None]"
        self.places = {
            fast: column if self.is_wide(fast) else f"({column} % {width})",
            slow: f"({row} + {column} // {width} * {height})" if self.is_wide(slow) else row,
        }
        text = super().load(tile, "0")
        self.places = {}
        order = ", ".join(str(2 if axis is fast else 0) for axis in tile.axes)
        return f"tl.permute(tl.reshape({text}, ({height}, {self.warps}, {width})), (1, {order}))"

    def place(self, source: Source, index: Index, axes: Sequence[Axis], time: str) -> tuple[str, list[str]]:
        pointer, inside = super().place(source, index, axes, time)
        if axes and not self.places and not self.is_divided(axes):
            pointer = f"{pointer} + {self.every_warp(axes)} * 0"
        return pointer, inside

    def singly(self, source: Source, axes: Sequence[Axis]) -> bool:
        return super().singly(source, axes) or (not source.rows and source.kind == "float" and len(axes) > 0)

    def like(self, source: Source, index: Index, axes: Sequence[Axis], time: str) -> str | None:
        often = len(axes) > 1 and time in ("t", "later")
        return self.spread_over(axes) if often and in_twos(source, index) and not is_turned(index, axes) else None

    def everywhere(self, axes: Sequence[Axis]) -> str:
        return f"around({self.spread_over(axes)})" if len(axes) > 1 else super().everywhere(axes)

    def alive(self, axes: Sequence[Axis]) -> str:
        return f"tl.full({self.shape(axes)}, 1, tl.int1)"

    def stored(self, source: Source, index: Index, text: str, axes: Sequence[Axis], time: str = "0") -> None:
        pointer, inside = self.place(source, index, axes, time)
        if axes and not self.is_divided(axes):
            self.writer = (self.writer + 1) % self.warps
            inside.append(f"({self.every_warp(axes)} == {self.writer})")
        there = " & ".join([*inside, self.alive(axes)]) if axes else "True"
        if like := self.like(source, index, axes, time):
            self.line(f"put({pointer}, {text}, {there}, {like}, direct)")
        elif time == "t" and axes and source.kind == "float":
            self.line(f"put_singly({pointer}, {text}, {there}, direct)")
        else:
            self.line(f"tl.store({pointer}, {text}, mask={there})")
