"""From tiles to the text of a Triton kernel whose products are of halves: two numbers in float16 for one in float32.

Three products of such parts are as good as six of parts in bfloat16, in half the time. But numbers have halves only
while they are neither very large nor very small (`halves.halves`), so a block scales what it multiplies by weights:

    a W = (scale · a) (light · W) / (scale · light)

All scales are powers of two. That of the weights is known before the loop. Every sample has one of its own. It is a
guess, the same for all steps: with the largest number between 2⁻¹³ and 2¹⁵ by it, what is left of any number is 2⁻²³
of the largest at most. What a network computes is seldom far from one, and 16 is the guess on the way forward.
Gradients are as large as somebody's loss makes them: on the way back the first step is taken alone before, to see.

So the largest number is measured. If it was too small, which is rare, the loop is taken again with a better scale; if
it was too large, with scales that move: after every step they are chosen anew, by what was multiplied and by what is
carried on. That takes longer, because threads wait for each other to know the largest number. It is a loop of a single
step then, again and again: within a loop scales stay as they are, so that threads have them at hand.

What is measured serves the products over all steps, too (`gemm`): the largest size of all is written at the end. If
scales had to move, it is infinite: the largest says nothing about most of the numbers then.
"""

from __future__ import annotations

import math

from nnarena.kernels.compiler.kernel import Kernel, name_of, needed_tiles
from nnarena.kernels.compiler.tiles import Ref, Source, Tile, padded
from nnarena.kernels.gpu.emit import HEADER, Writer

IMPORTS = """from nnarena.kernels.gpu.halves import added_in_halves, begun_in_halves, continued_in_halves, halves
from nnarena.kernels.gpu.halves import largest, moved_scale, phase_after, power, scale_after, undone, until_in
from nnarena.kernels.gpu.halves import GUESS, LIFT, LIGHTEST

"""


def emit_in_halves(kernel: Kernel, warps: int) -> str:
    return HEADER.rstrip() + "\n" + IMPORTS + "\n" + InHalves(kernel, warps).text() + "\n"


class InHalves(Writer):
    parts = 2
    steps = "begin, until"

    def __init__(self, kernel: Kernel, warps: int) -> None:
        super().__init__(kernel, warps)
        self.first_step = "T - 1 - begin" if kernel.backward else "begin"
        needed = needed_tiles(kernel)
        self.products = [tile for tile in self.program.tiles if tile in needed and tile.op == "dot" and not tile.steady]
        self.widths = sorted({padded(tile.detail[1]) for tile in self.products})  # of what is multiplied by weights
        self.halves: dict[str, str] = {}  # what was split, and the name of its halves

    def begin(self, steady: list[Tile]) -> None:
        super().begin(steady)
        sources = {tile.args[1].tile.detail[0] for tile in self.products}
        counts = {source.name: math.prod(source.shape) for source in sources}
        for number, (name, count) in enumerate(sorted(counts.items())):
            size = f"largest({name} + seed * {count}, {count})"
            self.line(f"heavy = tl.maximum(heavy, {size})" if number else f"heavy = {size}")
        self.line("light = tl.maximum(power(heavy, 0), LIGHTEST)")
        for tile in self.products:
            _, inner, columns = tile.detail
            self.split(self.matrix(tile.args[1], (), inner, columns, inner), "light")

    def start(self) -> None:
        super().start()
        self.begin_measuring()

    def open_loop(self, moving: list[Tile]) -> None:
        self.line("size, doubt = tl.full((), 0.0, tl.float32), tl.full((), 0.0, tl.float32)")
        self.line(f"scale = tl.full(({self.rows},), GUESS, tl.float32)")
        self.line(f"begin, phase = 0, tl.where(T > 0, {0 if self.kernel.backward else 1}, 5)")
        self.line("while phase < 5:")
        self.indent += 1
        self.line("until = until_in(phase, begin, T)")
        self.line("grow = undone(scale * light)")
        super().open_loop(moving)

    def product(self, tile: Tile, before: tuple[Ref, ...], left: str, right: str) -> str:
        if tile.steady:
            return super().product(tile, before, left, right)
        if left not in self.halves:
            most = f"most_{padded(tile.detail[1])}"
            self.line(f"{most} = tl.maximum({most}, tl.abs({left}))")
        factors = f"{self.split(left, 'scale[:, None]')}, {self.split(right, 'light')}"
        text = f"continued_in_halves({before[0].tile.name}, {factors})" if before else f"begun_in_halves({factors})"
        return text if tile.open else f"added_in_halves({text}, grow[:, None])"

    def split(self, text: str, scale: str) -> str:
        """The name of the halves of a matrix."""
        if text not in self.halves:
            self.halves[text] = f"half{len(self.halves)}"
            self.line(f"{self.halves[text]} = halves({text} * {scale}, LIFT)")
        return self.halves[text]

    def close_loop(self) -> None:
        """After all steps scales are judged; those that move do so after every step."""
        super().close_loop()
        self.indent -= 1
        self.measure()
        self.line("if (phase == 4) & (until < T):")
        self.indent += 1
        for held in self.kernel.held:
            if len(held.axes) == 1:
                carried = name_of(held.carry, held.piece)
                self.line(f"sizes = tl.maximum(sizes, tl.max(tl.abs({carried}), 1))")
        self.line("begin, scale = until, moved_scale(sizes, scale)")
        self.begin_measuring()
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        self.line("doubt = tl.where(phase == 4, float('inf'), doubt)")
        self.line("begin, before, phase = 0, phase, phase_after(phase, sizes, scale)")
        self.line("if phase < 5:")
        self.indent += 1
        self.line("size = tl.zeros_like(size)")
        self.line("scale = scale_after(before, phase, sizes, scale)")
        self.start()

    def begin_measuring(self) -> None:
        for width in self.widths:
            self.line(f"most_{width} = tl.zeros(({self.rows}, {width}), tl.float32)")

    def measure(self) -> None:
        """How large the numbers of every sample are; those of infinite size are of no use to anybody."""
        first, *others = (f"tl.max(most_{width}, 1)" for width in self.widths)
        self.line(f"sizes = {first}")
        for other in others:
            self.line(f"sizes = tl.maximum(sizes, {other})")
        self.line("size = tl.maximum(size, tl.max(tl.where(sizes < float('inf'), sizes, tl.zeros_like(sizes)), 0))")

    def finish(self) -> None:
        super().finish()
        for size in self.kernel.sizes:
            found = "tl.maximum(size, doubt)" if size.of is None else self.largest(size.of)
            self.line(f"tl.store({size.source.name} + seed * tl.num_programs(0) + tl.program_id(0), {found})")

    def largest(self, source: Source) -> str:
        """The size of the largest number that a program's samples have in a memory."""
        numbers = f"{self.length(source)} * {source.numbers}"
        return f"largest({source.name} + (seed * B + first) * {numbers}, present * {numbers})"
