"""From tiles to the text of a Triton kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nnarena.kernels.compiler.index import Axis, axes_of
from nnarena.kernels.compiler.kernel import Kernel, Sum, arguments, name_of, needed_tiles, uses
from nnarena.kernels.compiler.tiles import MAPS, Ref, Tile, Value, padded
from nnarena.kernels.gpu.abreast import Abreast, abreast, as_one
from nnarena.kernels.gpu.access import Access
from nnarena.kernels.gpu.at_once import Chain, joined, parted, summed
from nnarena.kernels.gpu.schedule import ahead, kept_weights, read_again, read_near, soon, together

WARP = 32  # threads
TILE = 128  # numbers that the matrix units of a warp make at once
AHEAD = 32  # numbers that a thread loads for the next step: more would crowd out those of this one

HEADER = '''"""Made by nnarena.kernels; do not edit."""

import triton
import triton.language as tl

from nnarena.kernels.gpu.maths import across, added, agreed, around, begun, below, beside, continued, exp, expect
from nnarena.kernels.gpu.maths import fetch, fetch_singly, halved, inverse, kept, put, put_singly, quartered, sigmoid
from nnarena.kernels.gpu.maths import spread, tanh

'''


def emit(kernel: Kernel, warps: int) -> str:
    return HEADER + "\n" + Writer(kernel, warps).text() + "\n"


class Writer(Access):
    """Writes a kernel down: what there is before the loop, the loop, and what comes after it."""

    spreading = "spread"
    lead = 0  # dimensions of a tile before those of its axes
    parts = 3  # of two bytes each that a weight takes
    steps = "T"

    def __init__(self, kernel: Kernel, warps: int) -> None:
        super().__init__(kernel, warps * WARP)
        self.first_step = "T - 1" if kernel.backward else "begin" if kernel.apart else "0"
        if kernel.apart:
            self.steps = "begin, tl.minimum(begin + own, T)"
        self.written: set[int] = set()  # stores
        self.abreast: dict[int, Abreast] = {}  # those that are one
        if self.rows == 1 and not self.program.inner_first and not self.plan.matrices:
            self.abreast = {place: several for several in abreast(kernel.stores) for place in several.stores}
        self.picked: set[Tile] = set()  # what was read of what was laid aside
        self.joined: dict[Tile, list[Tile]] = {}  # products that are added up as one
        self.parted: dict[Tile, list[Tile]] = {}  # products that are one, whose result is parted
        self.summed: dict[Tile, Chain] = {}  # chains of additions, by the last

    def text(self) -> str:
        kernel, needed = self.kernel, needed_tiles(self.kernel)
        names = arguments(kernel)
        tiles = [tile for tile in self.program.tiles if tile in needed]
        tiles = tiles if kernel.apart else together(tiles)
        if self.plan.matrices or (self.plan.announce and kernel.backward):
            tiles = soon(tiles)
        self.again = again = read_again(tiles) if self.plan.again else set()
        if self.plan.matrices and (self.rows > 1 or self.plan.divided) and not kernel.apart:
            self.copied = {tile for tile in again if len(tile.axes) == 2 and self.lies_in_twos(tile)}
        vectors = self.rows > 1 and not self.plan.matrices  # of 64 rows and more, weights are multiplied where they lie
        near = read_near(tiles, self.threads // WARP) if vectors else set()
        if vectors and self.plan.announce and not kernel.backward and self.plan.precision == "bf16x6":
            self.kept = kept_weights(tiles, self.threads, self.parts)
        self.multiplied = [[axis.pad for axis in tile.axes] for tile in tiles if tile.op == "dot"]
        for number, tile in enumerate(tiles):
            tile.name = f"v{number}"
        if self.plan.precision == "bf16x6" and not kernel.apart:
            self.joined, self.parted = joined(tiles), parted(tiles)
        waiting = {tile for products in self.joined.values() for tile in products[:-1]}
        waiting |= {tile for products in self.parted.values() for tile in products[1:]}
        self.prepare(tiles)
        if self.rows == 1 and not self.plan.divided:
            self.summed = summed(tiles, uses(kernel, tiles))
            waiting |= {tile for chain in self.summed.values() for tile in chain.parts}
        known = [f"{name}: tl.constexpr" for name in ("precision", "direct", *["whole"] * self.plan.knows_whole)]
        sizes = ["T", "B", "own" if kernel.apart else "E"]
        never = ", ".join(f'"{size}"' for size in sizes)
        signature = ", ".join([*names, *sizes, *known])
        self.lines += [f"@triton.jit(do_not_specialize=[{never}])", f"def {kernel.name}({signature}):"]
        self.begin([tile for tile in tiles if tile.steady and tile not in again and tile not in near])
        here = len(self.lines)
        announced = self.plan.announce and kernel.backward
        crowded = self.rows == 1 or self.plan.aside  # whether there are no registers for what is read early
        late = {tile for tile in tiles if tile.op == "load" and not tile.steady and announced and crowded}
        room = 0 if announced or kernel.apart else AHEAD * self.threads
        moving, placed = ahead(tiles, room, again | late, near, self.far(tiles))
        self.open_loop(moving)
        self.unsure = {store.source.name for store in kernel.stores}
        for tile in moving:
            self.line(f"{tile.name} = next_{tile.name}")
        self.expect(tiles)
        if moving:
            self.line(f"later = {self.next_step}")
        for tile in moving:
            self.line(f"next_{tile.name} = {self.load(tile, 'later')}")
        for tile in tiles:
            for load in placed.get(tile, []):
                self.line(f"{load.name} = {self.load(load, 't')}")
            if tile.op == "pick":
                self.pick(tile, tiles)
            elif not tile.steady and tile.op not in ("load", "carry") and tile not in waiting:
                several = self.parted.get(tile, [tile])
                if len(several) > 1:
                    self.compute_as_one(several)
                else:
                    self.compute(tile)
                for each in several:
                    self.write(each)
            elif tile.op == "carry":
                self.line(f"{tile.name} = {name_of(*tile.detail)}")
        self.write()
        for held in kernel.held:
            self.line(f"new_{name_of(held.carry, held.piece)} = {self.whole(held.value, self.with_rows(held.axes))}")
        self.close_loop()
        self.indent = 1
        self.finish()
        self.lines[here:here] = [
            f"    {'like_' + '_'.join(map(str, sizes))} = {self.spreading}({', '.join(map(str, sizes))})"
            for sizes in sorted(self.spread)
        ]
        return "\n".join(self.lines)

    def far(self, tiles: list[Tile]) -> set[Tile]:
        """What is read a step ahead in any case."""
        return set()

    def prepare(self, tiles: list[Tile]) -> None:
        """What there is to know before a line is written."""

    def begin(self, steady: list[Tile]) -> None:
        """Which samples a program has, what is the same at every step, and what is carried."""
        self.line("seed = tl.program_id(1).to(tl.int64)")
        if self.rows > 1:
            self.line(f"wanted = tl.program_id(0) * {self.rows} + tl.arange(0, {self.rows})")
            self.line("live = (wanted < B) | whole" if self.plan.knows_whole else "live = wanted < B")
            self.line("row = seed * B + tl.minimum(wanted, B - 1)")
        else:
            self.line("row = seed * B + tl.program_id(0)")
        if self.plan.announce:
            self.line(f"first = tl.program_id(0) * {self.rows}")
            self.line(f"present = tl.minimum(B - first, {self.rows})")
        if self.kernel.apart:
            self.line("begin = tl.program_id(2) * own")
        for tile in steady:
            self.compute(tile)
        self.start()
        for held in self.kernel.held:
            if held.first:
                self.stored(*held.first, name_of(held.carry, held.piece), held.axes, time="0")

    def start(self) -> None:
        """What is carried, and sums, before the first step."""
        for held in self.kernel.held:
            start = self.loaded(*held.start, held.axes, live=self.kernel.backward)
            self.line(f"{name_of(held.carry, held.piece)} = {start}")
        for number, total in enumerate(self.kernel.sums):
            self.line(f"sum{number} = tl.zeros({self.shape(self.sum_axes(total))}, tl.float32)")

    def open_loop(self, moving: list[Tile]) -> None:
        """Each step reads what is `moving` for the next one; here it is read for the first."""
        for tile in moving:
            self.line(f"next_{tile.name} = {self.load(tile, self.first_step)}")
        self.line(f"for step in range({self.steps}):")
        self.indent += 1
        self.line(f"t = {'T - 1 - step' if self.kernel.backward else 'step'}")

    def close_loop(self) -> None:
        """What is carried goes on."""
        for number, total in enumerate(self.kernel.sums):
            for term in self.terms(total):
                self.line(f"sum{number} += {term}")
        for held in self.kernel.held:
            self.line(f"{name_of(held.carry, held.piece)} = new_{name_of(held.carry, held.piece)}")

    def terms(self, total: Sum) -> list[str]:
        """What a step adds to a sum."""
        return [self.whole(term, self.sum_axes(total)) for term in total.terms]

    def finish(self) -> None:
        """What is carried, and what was added up, is written."""
        for held in self.kernel.held:
            if held.end:
                self.stored(*held.end, name_of(held.carry, held.piece), held.axes)
        for number, total in enumerate(self.kernel.sums):
            text = f"sum{number}"
            if self.program.batch in self.sum_axes(total):
                text = f"tl.sum({text}, 0)"
            self.stored_sum(total, text)

    def write(self, tile: Tile | None = None) -> None:
        """Whatever is written of a tile, as soon as it is there; without one, all that was not written yet."""
        for place, store in enumerate(self.kernel.stores):
            if place in self.written or (tile and not (isinstance(store.value, Ref) and store.value.tile is tile)):
                continue
            self.written.add(place)
            if (several := self.abreast.get(place)) is not None:
                self.write_abreast(several)
                continue
            axes = axes_of(store.index)
            self.stored(store.source, store.index, self.whole(store.value, self.with_rows(axes)), axes, time="t")

    def write_abreast(self, several: Abreast) -> None:
        """Vectors that are written as one, when the last of them is there."""
        if self.written.issuperset(several.stores):
            stores = [self.kernel.stores[place] for place in several.stores]
            text = as_one([self.whole(store.value, axes_of(store.index)) for store in stores])
            self.stored(several.source, several.index, text, several.axes, time="t")

    def pick(self, tile: Tile, tiles: list[Tile]) -> None:
        """All that is read of one vector that was laid aside, at once: it takes a while, and threads must wait for each
        other if they have written there since they did so last."""
        if tile in self.picked:
            return
        if tile.detail[0].name in self.unsure:
            self.line("tl.debug_barrier()")
            self.unsure.clear()
        for other in tiles:
            if other.op == "pick" and other.detail[0] is tile.detail[0]:
                self.picked.add(other)
                self.line(f"{other.name} = {self.load(other, 't')}")

    # Tiles

    def compute(self, tile: Tile) -> None:
        match tile.op:
            case "load":
                text = self.load(tile, "0")
            case "map" if tile in self.summed:
                text = self.added_at_once(self.summed[tile])
            case "map":
                text = MAPS[tile.detail].text.format(*(self.operand(arg, tile.axes) for arg in tile.args))
            case "sum" | "max":
                text = self.reduction(tile)
            case "dot" | "dots":
                text = self.dot(tile)
            case "equals":
                axis, start = tile.detail
                place = self.along(axis, tile.axes)
                text = f"tl.where({self.operand(tile.args[0], tile.axes)} == {place} + {start}, 1.0, 0.0)"
            case other:
                raise AssertionError(other)
        self.line(f"{tile.name} = {text}")

    def reduction(self, tile: Tile) -> str:
        (ref,) = tile.args
        neutral = "0.0" if tile.op == "sum" else "float('-inf')"
        text = self.masked(ref, tile.detail, neutral)
        for place in sorted((ref.axes.index(axis) for axis in tile.detail), reverse=True):
            text = f"tl.{tile.op}({text}, {place})"
        return text

    def dot(self, tile: Tile) -> str:
        """A product of matrices, or a sum of them so far; of `dots`, one for every sample."""
        rows, inner, columns = tile.detail
        each = (self.program.batch,) if tile.op == "dots" else ()
        if self.kernel.apart and self.program.batch in inner:
            return self.over_samples(tile)
        products = self.joined.get(tile, [tile])
        lefts = [self.matrix(part.args[0], each, rows, part.detail[1], part.detail[1]) for part in products]
        rights = [self.matrix(part.args[1], each, part.detail[1], columns, part.detail[1]) for part in products]
        before = products[0].args[2:]
        text = self.product(tile, before, nested("beside", lefts), nested("below", rights))
        if tile.open:
            return text
        if len(rows) == 1 and len(columns) == 1:
            return text
        return f"tl.reshape({text}, {self.shape((*each, *rows, *columns))})"

    def added_at_once(self, chain: Chain) -> str:
        """What a chain of additions comes to: sums that can be one are."""
        return " + ".join(self.one_sum(terms) if len(terms) > 1 else terms[0].tile.name for terms in chain.terms)

    def one_sum(self, terms: list[Ref]) -> str:
        """Σ (a + b) in place of Σ a + Σ b."""
        inner, insides = terms[0].tile.detail, [term.tile.args[0] for term in terms]
        text = " + ".join(self.masked(ref, t.tile.detail, "0.0") for ref, t in zip(insides, terms, strict=True))
        for place in sorted((insides[0].axes.index(axis) for axis in inner), reverse=True):
            text = f"tl.sum({text}, {place})"
        return text

    def compute_as_one(self, products: list[Tile]) -> None:
        """Products of the same left side, with all right sides beside each other."""
        rows, inner, _ = products[0].detail
        left = self.matrix(products[0].args[0], (), rows, inner, inner)
        rights = [self.matrix(tile.args[1], (), tile.detail[1], tile.detail[2], tile.detail[1]) for tile in products]
        names = ", ".join(tile.name for tile in products)
        text = f"added(begun({left}, {nested('beside', rights)}, precision))"
        self.line(f"{names} = {'halved' if len(products) == 2 else 'quartered'}({text})")
        for tile in products:
            self.line(f"{tile.name} = tl.reshape({tile.name}, {self.shape(tile.axes)})")

    def over_samples(self, tile: Tile) -> str:
        """A product that is a sum over samples; the larger side comes first."""
        left, right, (rows, inner, columns) = *tile.args, tile.detail
        a, b = self.matrix(left, (), inner, rows, inner), self.matrix(right, (), inner, columns, inner)
        first = padded(rows) >= padded(columns)
        text = f"across({a}, {b}, precision)" if first else f"tl.trans(across({b}, {a}, precision))"
        return f"tl.reshape({text}, {self.shape((*rows, *columns))})"

    def product(self, tile: Tile, before: tuple[Ref, ...], left: str, right: str) -> str:
        """A product of two matrices, added to the one before it, if there is one."""
        factors = f"{left}, {right}, precision"
        alone = self.rows == 1 and padded(tile.axes) * WARP <= TILE * self.threads
        text = f"continued({before[0].tile.name}, {factors})" if before else f"begun({factors}{', 6' * alone})"
        return text if tile.open else f"added({text})"

    def matrix(
        self,
        ref: Ref,
        each: tuple[Axis, ...],
        rows: tuple[Axis, ...],
        columns: tuple[Axis, ...],
        inner: tuple[Axis, ...],
    ) -> str:
        """A tile as a matrix, or as one for each, with zeros beyond the size of what is summed."""
        order = [ref.axes.index(axis) for axis in (*each, *rows, *columns)]
        text = self.permuted(self.masked(ref, inner, "0.0"), order)
        if len(rows) == 1 and len(columns) == 1:
            return text
        sizes = [*self.sizes(each), *(math.prod(map(self.own, axes)) for axes in (rows, columns))]
        return f"tl.reshape({text}, ({', '.join(map(str, sizes))}))"

    def masked(self, ref: Ref, axes: Iterable[Axis], fill: str) -> str:
        """A tile with `fill` beyond the size of these axes."""
        dirty = [
            axis
            for axis in axes
            if axis is not self.program.batch and axis.size != axis.pad and not (fill == "0.0" and axis in ref.clean)
        ]
        if not dirty:
            return ref.tile.name
        inside = " & ".join(f"({self.along(axis, ref.axes)} < {axis.size})" for axis in dirty)
        return f"tl.where({inside}, {ref.tile.name}, {fill})"

    def operand(self, value: Value, axes: Sequence[Axis]) -> str:
        """A value with a dimension for each of these axes."""
        if not isinstance(value, Ref):
            return number(value)
        mine = self.with_rows(value.axes) if value.tile in self.copied else value.axes
        order = [axis for axis in axes if axis in mine]
        text = self.permuted(value.tile.name, [mine.index(axis) for axis in order])
        if len(order) == len(axes) or not order:
            return text
        places = [":"] * self.lead + [":" if axis in mine else "None" for axis in axes]
        return f"{text}[{', '.join(places)}]"

    def permuted(self, text: str, places: list[int]) -> str:
        """A tile with its axes in this order."""
        if places == [*range(len(places))]:
            return text
        return f"tl.permute({text}, {(*range(self.lead), *(self.lead + place for place in places))})"

    def whole(self, value: Value, axes: Sequence[Axis]) -> str:
        """A value in the full shape of these axes."""
        shape = self.shape(axes)
        if not isinstance(value, Ref):
            return f"tl.full({shape}, {number(value)}, tl.float32)" if axes else number(value)
        text = self.operand(value, axes)
        if set(axes) == set(value.axes):
            return text
        return f"tl.broadcast_to({text}, {shape})" if value.axes else f"tl.zeros({shape}, tl.float32) + {text}"

    def sum_axes(self, total: Sum) -> tuple[Axis, ...]:
        rows = all(isinstance(term, Ref) and self.program.batch in term.axes for term in total.terms)
        return self.with_rows(total.axes) if rows else total.axes


def nested(function: str, texts: list[str]) -> str:
    """A function of two, of one, two or four: f(f(a, b), f(c, d))."""
    while len(texts) > 1:
        texts = [f"{function}({one}, {other})" for one, other in zip(texts[::2], texts[1::2], strict=True)]
    return texts[0]


def number(value: float | bool) -> str:
    if isinstance(value, bool):
        return str(value)
    return f"float('{value}')" if value != value or abs(value) == float("inf") else repr(float(value))
