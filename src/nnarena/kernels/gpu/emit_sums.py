"""From tiles to the text of a Triton kernel that adds up gradients after the loops (`remade`).

Nothing waits for the step before here, so products are of halves (`halves`) whose scales are found on the spot: a block
of rows that was read has one, by its largest number, and of what is made of it every unit has one. That is as good as
float32 unless the numbers of a block differ by more than 2¹⁶; those that are smaller are right to 2⁻³⁹ of the largest.

What is multiplied by weights stands right of them, Wᵀ xᵀ in place of x W. Then what comes of it lies in the threads as
the matrix units want the left side of the next product, whose sum is over the rows of x: it need not be turned.
"""

from __future__ import annotations

from nnarena.kernels.compiler.kernel import Kernel, needed_tiles
from nnarena.kernels.compiler.remade import products_in
from nnarena.kernels.compiler.tiles import Ref, Tile, padded
from nnarena.kernels.gpu.emit import HEADER, Writer

IMPORTS = """from nnarena.kernels.gpu.halves import across_in_halves, scaled_halves, weighted_in_halves

"""


def emit_sums(kernel: Kernel, warps: int) -> str:
    return HEADER.rstrip() + "\n" + IMPORTS + "\n" + Sums(kernel, warps).text() + "\n"


class Sums(Writer):
    def __init__(self, kernel: Kernel, warps: int) -> None:
        super().__init__(kernel, warps)
        self.halves: dict[str, str] = {}  # what was split, and the name of its halves

    def begin(self, steady: list[Tile]) -> None:
        super().begin(steady)
        needed = needed_tiles(self.kernel)
        for tile in self.program.tiles:
            if tile in needed and tile.op == "dot" and not tile.steady and tile.args[1].tile.steady:
                _, inner, columns = tile.detail
                self.split(self.matrix(tile.args[1], (), inner, columns, inner))

    def product(self, tile: Tile, before: tuple[Ref, ...], left: str, right: str) -> str:
        if tile.op == "dots" or tile.steady or tile.open or before:
            return super().product(tile, before, left, right)
        return f"weighted_in_halves({self.split(right)}, {self.split(left)})"

    def over_samples(self, tile: Tile) -> str:
        """What was made of other products comes first; of two such sides, or none, the larger."""
        left, right, (rows, inner, columns) = *tile.args, tile.detail
        a, b = self.matrix(left, (), inner, rows, inner), self.matrix(right, (), inner, columns, inner)
        sizes = [(bool(products_in([side])), padded(axes)) for side, axes in ((left, rows), (right, columns))]
        if sizes[0] >= sizes[1]:
            text = f"across_in_halves({a}, {self.split(b)})"
        else:
            text = f"tl.trans(across_in_halves({b}, {self.split(a)}))"
        return f"tl.reshape({text}, {self.shape((*rows, *columns))})"

    def split(self, text: str) -> str:
        """The name of the halves of a matrix."""
        if text not in self.halves:
            self.halves[text] = f"half{len(self.halves)}"
            self.line(f"{self.halves[text]} = scaled_halves({text})")
        return self.halves[text]
