"""From tiles to the text of a Triton kernel that adds up gradients after the loops (`remade`).

Nothing waits for the step before here, so products are of halves (`halves`) whose scales are found on the spot: a block
of rows that was read has one, by its largest number, and of what is made of it every unit has one. That is as good as
float32 unless the numbers of a block differ by more than 2¹⁶; those that are smaller are right to 2⁻³⁹ of the largest.

What is multiplied by weights stands right of them, Wᵀ xᵀ in place of x W. Then what comes of it lies in the threads as
the matrix units want the left side of the next product, whose sum is over the rows of x: it need not be turned. No
number of it exceeds the sum of a unit's weights times the largest number of x, which is as good as to look at them all.

Products of a sample's matrices with each other (`dots`) are of six in bfloat16: each is the work of one warp, for which
a scale would take as long as three more products. They are turned in the same way, and what is read for them is read
turned.
"""

from __future__ import annotations

from nnarena.kernels.compiler.index import Axis
from nnarena.kernels.compiler.kernel import Kernel, needed_tiles
from nnarena.kernels.compiler.remade import products_in
from nnarena.kernels.compiler.tiles import Ref, Tile, Value, padded
from nnarena.kernels.gpu.emit import HEADER, Writer

IMPORTS = """from nnarena.kernels.gpu.halves import across_in_halves, scaled_halves, size_of_columns
from nnarena.kernels.gpu.halves import size_of_weighted, size_of_weights, weighted_in_halves
from nnarena.kernels.gpu.maths import spread_by_warp

"""


def emit_sums(kernel: Kernel, warps: int) -> str:
    return HEADER.rstrip() + "\n" + IMPORTS + "\n" + Sums(kernel, warps).text() + "\n"


class Sums(Writer):
    def __init__(self, kernel: Kernel, warps: int) -> None:
        super().__init__(kernel, warps)
        if self.program.each:
            self.spreading = "spread_by_warp"
        self.weighted: dict[Tile, tuple[str, str]] = {}  # products with weights: their sizes, and what they multiply
        self.halves: dict[str, str] = {}  # what was split, and the name of its halves

    def begin(self, steady: list[Tile]) -> None:
        super().begin(steady)
        needed = needed_tiles(self.kernel)
        for tile in self.program.tiles:
            if tile in needed and tile.op == "dot" and not tile.steady and tile.args[1].tile.steady:
                _, inner, columns = tile.detail
                weights = self.matrix(tile.args[1], (), inner, columns, inner)
                self.line(f"sizes_{self.split(weights)} = size_of_weights({weights})")

    def product(self, tile: Tile, before: tuple[Ref, ...], left: str, right: str) -> str:
        if tile.op == "dots":
            return f"added(begun({left}, {right}, precision, 1))"
        if tile.steady or tile.open or before:
            return super().product(tile, before, left, right)
        weights, numbers = self.split(right), self.split(left)
        self.weighted[tile] = f"sizes_{weights}", numbers
        return f"weighted_in_halves({weights}, {numbers})"

    def over_samples(self, tile: Tile) -> str:
        """What was made of other products comes first; of two such sides, or none, the larger."""
        left, right, (rows, inner, columns) = *tile.args, tile.detail
        a, b = self.matrix(left, (), inner, rows, inner), self.matrix(right, (), inner, columns, inner)
        sizes = [(bool(products_in([side])), padded(axes)) for side, axes in ((left, rows), (right, columns))]
        if sizes[0] >= sizes[1]:
            text = f"across_in_halves({a}, {self.split(b)}, {self.sizes_of(left, rows) or f'size_of_columns({a})'})"
        else:
            known = self.sizes_of(right, columns) or f"size_of_columns({b})"
            text = f"tl.trans(across_in_halves({b}, {self.split(a)}, {known}))"
        return f"tl.reshape({text}, {self.shape((*rows, *columns))})"

    def sizes_of(self, value: Value, units: tuple[Axis, ...]) -> str | None:
        """What the numbers of every unit do not exceed, if that is known without looking at them: of a product with
        weights, perhaps with a bias of the units, or clipped."""
        if not isinstance(value, Ref) or not {*units} <= {*value.axes}:
            return None
        tile, names = value.tile, dict(zip(value.axes, value.tile.axes, strict=True))
        units = tuple(names[axis] for axis in units)  # as they are called there
        if tile in self.weighted and tile.detail[2] == units:
            weights, numbers = self.weighted[tile]
            return f"size_of_weighted({weights}, {numbers})"
        if tile.op != "map":
            return None
        match tile.detail, tile.args:
            case "relu", (inside,):
                return self.sizes_of(inside, units)
            case "where", (_, inside, 0.0):
                return self.sizes_of(inside, units)
            case "add", (Ref() as one, Ref() as other):
                bias, moving = (one, other) if one.tile.steady else (other, one)
                sizes = self.sizes_of(moving, units)
                if sizes and bias.tile.steady and bias.axes == units:
                    return f"{sizes} + tl.abs({bias.tile.name})"
        return None

    def split(self, text: str) -> str:
        """The name of the halves of a matrix."""
        if text not in self.halves:
            self.halves[text] = f"half{len(self.halves)}"
            self.line(f"{self.halves[text]} = scaled_halves({text})")
        return self.halves[text]
