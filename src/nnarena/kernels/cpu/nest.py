"""From tiles to the text of a loop in C++: nests of loops, sums and products."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from nnarena.kernels.compiler.index import Axis, axes_of
from nnarena.kernels.compiler.kernel import Kernel
from nnarena.kernels.compiler.tiles import Ref, Source, Tile, Value, factors_of
from nnarena.kernels.cpu.nests import Nest, Nests, own_axes
from nnarena.kernels.cpu.spots import Spot, product_call, row_major, spot_in

OURS = ("hist", "saved")  # memory that nobody else reads
SUMMED = {"sum": ("all(0)", "{0} + {1}"), "max": ("all(-INFINITY)", "most({0}, {1})")}
LOGICAL = ("and", "or", "not")
MAPS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "agreed": "{0}",
    "abs": "magnitude({0})",
    "exp": "exp({0})",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "expm1": "expm1({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "1.0f / sqrt({0})",
    "reciprocal": "1.0f / {0}",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "erf": "erf({0})",
    "tanh": "tanh({0})",
    "sigmoid": "sigmoid({0})",
    "relu": "relu({0})",
    "maximum": "most({0}, {1})",
    "minimum": "least({0}, {1})",
    "sign": "sign({0})",
    "where": "{0} ? {1} : {2}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "~{0}",
}


@dataclass(frozen=True, eq=False)
class Effect:
    """A value that is written, or added to what is there."""

    value: Value
    spot: Spot
    axes: tuple[Axis, ...]
    adds: bool = False


def effects_of(kernel: Kernel) -> list[Effect]:
    """All that a step writes, carries on and adds up."""
    effects = []
    for store in kernel.stores:
        source = store.source
        pointer = f"{source.name}_{source.shift}" if is_ours(source) else f"{source.name}_turned"
        effects.append(Effect(store.value, spot_in(pointer, source, store.index), axes_of(store.index)))
    for held in kernel.held:
        source, index = held.start
        effects.append(Effect(held.value, spot_in(f"next{held.carry.part}", source, index), held.axes))
    for number, total in enumerate(kernel.sums):
        spot = spot_of_sum(kernel, number)
        effects += [Effect(term, spot, total.axes, adds=True) for term in total.terms]
    return effects


def spot_of_sum(kernel: Kernel, number: int) -> Spot:
    """Where a sum over all steps lies; if all its terms have lanes, it is added up over them in the end."""
    total = kernel.sums[number]
    lanes = all(isinstance(term, Ref) and kernel.program.batch in term.axes for term in total.terms)
    return Spot(f"sum{number}", 0, row_major(total.axes), lanes)


class NestWriter:
    """Lines of C++.

    done   effects that nests have while they compute what is written
    into   sums that go where they are added up
    """

    def __init__(self, kernel: Kernel, tiles: list[Tile], effects: list[Effect]) -> None:
        self.kernel, self.program, self.effects = kernel, kernel.program, effects
        self.nests = Nests(self.program, tiles, [effect.value for effect in effects])
        self.done: list[Effect] = []
        self.into: dict[Tile, Effect] = {}
        self._assign_effects()
        self.lines: list[str] = []
        self.indent = 0
        self.local: set[Tile] = set()  # tiles whose numbers are at hand

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def begin(self, text: str) -> None:
        self.line(text + " {")
        self.indent += 1

    def end(self, levels: int = 1) -> None:
        for _ in range(levels):
            self.indent -= 1
            self.line("}")

    def _assign_effects(self) -> None:
        """What is written in the nest that computes it, in the order in which it lies there."""
        for effect in self.effects:
            value = effect.value
            if not isinstance(value, Ref) or value.tile not in self.nests.place:
                continue
            own = own_axes(value.axes, self.program)
            nest = self.nests.nests[self.nests.place[value.tile]]
            lanes = self.program.batch in value.axes
            if set(own) != set(effect.axes) or lanes != effect.spot.lanes or value.tile.steady:
                continue
            alone = len(self.nests.users[value.tile]) == 1
            if not nest.reduces:
                self.done.append(effect)
            elif alone and value.tile.op == "sum":
                names = dict(zip(value.axes, value.tile.axes, strict=True))
                strides = {names[axis]: step for axis, step in effect.spot.strides.items()}
                self.into[value.tile] = replace(effect, spot=replace(effect.spot, strides=strides))
                self.done.append(effect)

    def rests(self, tile: Tile) -> bool:
        own = [e for e in self.effects if isinstance(e.value, Ref) and e.value.tile is tile]
        return self.nests.rests(tile) or any(effect not in self.done for effect in own)

    def effect(self, effect: Effect) -> None:
        """A nest of its own."""
        env = self.loops(effect.axes)
        lanes = effect.spot.lanes
        if lanes:
            self.begin("for (int v = 0; v < LANES; v += WIDTH)")
        value = self._value(effect.value, env)
        self._put(effect.spot, env, value, effect.adds)
        self.end(len(effect.axes) + lanes)

    def _put(self, spot: Spot, env: dict[Axis, str], value: str, adds: bool = False) -> None:
        place = spot.at(env)
        if spot.lanes:
            self.line(f"store({place} + v, {f'load({place} + v) + ' if adds else ''}{value});")
        else:
            self.line(f"*({place}) {'+=' if adds else '='} ({value})[0];")

    def loops(self, axes: Iterable[Axis], letter: str = "i") -> dict[Axis, str]:
        env = {}
        for number, axis in enumerate(axes):
            env[axis] = name = f"{letter}{number}"
            self.begin(f"for (long {name} = 0; {name} < {axis.size}; {name}++)")
        return env

    def nest(self, nest: Nest) -> None:
        if nest.reduces:
            self._reduction(nest.tiles[0])
            return
        names = [f"i{place}" for place in range(len(nest.sizes))]
        for name, size in zip(names, nest.sizes, strict=True):
            self.begin(f"for (long {name} = 0; {name} < {size}; {name}++)")
        if nest.lanes:
            self.begin("for (int v = 0; v < LANES; v += WIDTH)")
        self.local = set()
        for tile in nest.tiles:
            axes = own_axes(tile.axes, self.program)
            env = {axis: names[dim] for axis, dim in zip(axes, nest.dims[tile], strict=True)}
            self._compute(tile, env)
            self.local.add(tile)
            if tile.steady or self.rests(tile):
                spot = self._spot(Ref(tile, tile.axes))
                self._put(spot, env, self._as_number(tile))
            for effect in self.done:
                if isinstance(effect.value, Ref) and effect.value.tile is tile:
                    names_of = dict(zip(effect.value.axes, tile.axes, strict=True))
                    inside = {axis: env[names_of[axis]] for axis in effect.axes}
                    self._put(effect.spot, inside, self._as_number(tile), effect.adds)
        self.local = set()
        self.end(len(nest.sizes) + nest.lanes)

    def _compute(self, tile: Tile, env: dict[Axis, str]) -> None:
        """The number of a tile, under its name."""
        if tile.op == "equals":
            axis, start = tile.detail
            text = f"number({self._value(tile.args[0], env)} == (float)({env[axis]} + {start}))"
        else:
            wants = [
                "truth" if tile.detail in LOGICAL or (tile.detail, place) == ("where", 0) else "number"
                for place in range(3)
            ]
            args = [self._value(arg, env, want) for arg, want in zip(tile.args, wants, strict=False)]
            text = MAPS[tile.detail].format(*args)
        self.line(f"const {'M' if tile.kind == 'bool' else 'V'} x{tile.name[1:]} = {text};")

    def _as_number(self, tile: Tile) -> str:
        name = f"x{tile.name[1:]}"
        return f"number({name})" if tile.kind == "bool" else name

    def _value(self, value: Value, env: dict[Axis, str], want: str = "number") -> str:
        if not isinstance(value, Ref):
            return f"all({number(value)})" if want == "number" else f"truth(all({number(value)}))"
        tile = value.tile
        if tile in self.nests.inlined and tile not in self.local:
            self._compute(
                tile, {own: env[axis] for own, axis in zip(tile.axes, value.axes, strict=True) if axis in env}
            )
            return self._made(tile, want)
        if tile in self.local:
            return self._made(tile, want)
        spot = self._spot(value)
        text = f"load({spot.at(env)} + v)" if spot.lanes else f"all(*({spot.at(env)}))"
        return f"truth({text})" if want == "truth" else text

    def _made(self, tile: Tile, want: str) -> str:
        if want == "number":
            return self._as_number(tile)
        name = f"x{tile.name[1:]}"
        return name if tile.kind == "bool" else f"truth({name})"

    def _spot(self, ref: Ref) -> Spot:
        """Where a tile lies, by the names that its axes have here."""
        tile, names = ref.tile, dict(zip(ref.tile.axes, ref.axes, strict=True))
        if tile.op == "load":
            source, index = tile.detail
            pointer = source.name
            if source.rows:
                pointer = f"{source.name}_{source.shift}" if is_ours(source) else f"{source.name}_turned"
            spot = spot_in(pointer, source, index, lanes=source.rows)
        elif tile.op == "carry":
            spot = self._spot_of_piece(tile)
        else:
            strides = row_major(own_axes(tile.axes, self.program))
            spot = Spot(tile.name, 0, strides, self.program.batch in tile.axes)
        return replace(spot, strides={names[axis]: step for axis, step in spot.strides.items()})

    def _spot_of_piece(self, tile: Tile) -> Spot:
        carry, piece = tile.detail
        axes = iter(own_axes(tile.axes, self.program))
        offset, strides, step = 0, {}, math.prod(carry.shape)
        for size, cuts, place in zip(carry.shape, carry.cuts, piece, strict=True):
            step //= size
            offset += cuts[place] * step
            if cuts[place + 1] - cuts[place] > 1:
                strides[next(axes)] = step
        return Spot(f"state{carry.part}", offset, strides, True)

    def _reduction(self, tile: Tile) -> None:
        effect = self.into.get(tile)
        out = effect.spot if effect else self._spot(Ref(tile, tile.axes))
        adds = effect is not None and effect.adds
        if not self._product(tile, out, adds):
            self._sum(tile, out, adds)

    def _sum(self, tile: Tile, out: Spot, adds: bool) -> None:
        """One number after the other."""
        (ref,) = tile.args
        first, more = SUMMED[tile.op]
        axes, inner = own_axes(tile.axes, self.program), own_axes(tile.detail, self.program)
        env = self.loops(axes)
        lanes = self.program.batch in ref.axes
        across = self.program.batch in tile.detail
        if across:
            self.line("V whole = all(0);")
        if lanes:
            self.begin("for (int v = 0; v < LANES; v += WIDTH)")
        self.line(f"V sum = {first};")
        env |= self.loops(inner, "k")
        text = self._value(ref, env)
        self.line(f"sum = {more.format('sum', text)};")
        self.end(len(inner))
        if across:
            self.line("whole += sum;")
            self.end()
            self.line(f"*({out.at(env)}) {'+=' if adds else '='} total(whole);")
        else:
            self._put(out, env, "sum", adds)
            self.end(lanes)
        self.end(len(axes))

    def _product(self, tile: Tile, out: Spot, adds: bool) -> bool:
        """A sum of products of two that lie in memory, by what is fast at it; False if nothing is."""
        found = factors_of(tile)
        if found is None or tile.args[0].tile not in self.nests.inlined:
            return False
        if any(factor.tile in self.nests.inlined for factor in found):
            return False
        left, right = (self._spot(ref) for ref in found)
        axes, inner = own_axes(tile.axes, self.program), own_axes(tile.detail, self.program)
        call = product_call(axes, inner, out, left, right, adds, across=self.program.batch in tile.detail)
        if call is None:
            return False
        if call.zeros:
            env = self.loops(axes)
            self._zero(out, env)
            self.end(len(axes))
        env = self.loops(call.around)
        self.line(call.text(env))
        self.end(len(call.around))
        return True

    def _zero(self, out: Spot, env: dict[Axis, str]) -> None:
        if out.lanes:
            self.line(f"for (int v = 0; v < LANES; v += WIDTH) store({out.at(env)} + v, all(0));")
        else:
            self.line(f"*({out.at(env)}) = 0;")


def is_ours(source: Source) -> bool:
    return source.name.startswith(OURS)


def number(value: float | bool) -> str:
    if isinstance(value, bool):
        return "1.0f" if value else "0.0f"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    if math.isnan(value):
        return "NAN"
    return f"{float(value)!r}f"
