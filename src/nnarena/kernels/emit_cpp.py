"""From tiles to the text of a loop in C++, for a CPU.

A program has a block of samples, one in every lane of its vectors (`lanes.hpp`). Memory that only our loops read has
the lanes last as well: (seeds, blocks, steps, numbers, LANES). Memory of torch has samples in front, and is turned
round as it is read and written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nnarena.kernels.index import Axis
from nnarena.kernels.kernel import Kernel, arguments, axes_of, needed_tiles
from nnarena.kernels.nests import Nest, Nests, Room, own_axes
from nnarena.kernels.plan import LANES
from nnarena.kernels.spots import Spot, product_call, row_major, spot_in
from nnarena.kernels.tiles import Carry, Ref, Source, Tile, Value, factors_of

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


def emit_cpp(kernel: Kernel) -> str:
    return Writer(kernel).text()


@dataclass
class Effect:
    """A value that is written, or added to what is there."""

    value: Value
    spot: Spot
    axes: tuple[Axis, ...]
    adds: bool = False


class Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.program = kernel, kernel.program
        self.lines: list[str] = []
        self.indent = 0
        needed = needed_tiles(kernel)
        tiles = [tile for tile in self.program.tiles if tile in needed]
        for number, tile in enumerate(tiles):
            tile.name = f"v{number}"
        self.effects = self._effects()
        self.nests = Nests(self.program, tiles, [effect.value for effect in self.effects])
        self.loads = [tile for tile in tiles if tile.op == "load"]
        self.room = Room()
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

    # The whole

    def text(self) -> str:
        kernel = self.kernel
        self.indent = 1
        places = self._places()
        self._steady()
        self._start()
        self.begin("for (long step = 0; step < T; step++)")
        self.line(f"const long t = {'T - 1 - step' if kernel.backward else 'step'};")
        self._read()
        for number, nest in enumerate(self.nests.nests):
            if not nest.tiles[0].steady:
                self._nest(nest, number)
        for effect in self.effects:
            if effect not in self.done:
                self._effect(effect)
        self._write()
        for part in self._parts():
            self.line(f"std::swap(state{part}, next{part});")
        self.end()
        self._finish()
        body = self.lines
        head = ['#include "lanes.hpp"', "", "using namespace lanes;", ""]
        head.append(
            "static void program(float *const *memory, const long T, const long B, const long E, const long S, "
            "const long seed, const long block, float *const room) {"
        )
        tail = [
            "}",
            "",
            f'extern "C" void {kernel.name}(float *const *memory, long T, long B, long E, long S, long threads) {{',
            "    const long blocks = (B + LANES - 1) / LANES;",
            f"    shared_out(S * blocks, threads, {self.room.size}, [&](long number, float *room) {{",
            "        program(memory, T, B, E, S, number / blocks, number % blocks, room);",
            "    });",
            "}",
            "",
        ]
        return "\n".join([*head, *places, *body, *tail])

    def _places(self) -> list[str]:
        """Pointers to all memory. What is held during all steps comes first; tiles share what is left."""
        kernel, self.lines = self.kernel, []
        self.line("const long live = B - block * LANES < LANES ? B - block * LANES : LANES;")
        self.line("const long blocks = (B + LANES - 1) / LANES;")
        sources = {source.name: source for source in self._sources()}
        for place, name in enumerate(arguments(kernel)):
            source = sources[name]
            self.line(f"float *const {name} = memory[{place}] + {self._beginning(source)};")
        for part, carry in self._parts().items():
            for name in ("state", "next"):
                self._room_for(f"{name}{part}", math.prod(carry.shape) * LANES, constant=False)
        for name in self._turned():
            self._room_for(f"{name}_turned", sources[name].numbers * LANES)
        for number, total in enumerate(kernel.sums):
            self._room_for(
                f"sum{number}", math.prod(a.size for a in total.axes) * (LANES if self._in_lanes(total.terms) else 1)
            )
        held = {tile for nest in self.nests.nests for tile in nest.tiles if tile.steady}
        for tile in held_in_order(self.nests.nests, held):
            self._room_for(tile.name, self._numbers(tile))
        self._assign_effects()
        self._room_for_tiles()
        places, self.lines = self.lines, []
        return places

    def _room_for(self, name: str, numbers: int, constant: bool = True) -> int:
        begin = self.room.take(numbers)
        self.line(f"float *{'const ' if constant else ''}{name} = room + {begin};")
        return begin

    def _room_for_tiles(self) -> None:
        last: dict[int, list[tuple[int, int]]] = {}
        for number, nest in enumerate(self.nests.nests):
            for tile in nest.tiles:
                if tile.steady or tile in self.into or not self._rests(tile):
                    continue
                size = self._numbers(tile)
                begin = self._room_for(tile.name, size)
                late = any(
                    isinstance(e.value, Ref) and e.value.tile is tile and e not in self.done for e in self.effects
                )
                until = len(self.nests.nests) if late else self.nests.last_read(tile)
                last.setdefault(until, []).append((begin, size))
            for begin, size in last.pop(number, []):
                self.room.give_back(begin, size)

    def _numbers(self, tile: Tile) -> int:
        axes = own_axes(tile.axes, self.program)
        return math.prod(axis.size for axis in axes) * (LANES if self.program.batch in tile.axes else 1)

    def _sources(self) -> Iterable[Source]:
        yield from (tile.detail[0] for tile in self.loads)
        yield from (store.source for store in self.kernel.stores)
        for held in self.kernel.held:
            yield from (place[0] for place in (held.start, held.end, held.first) if place)
        yield from (total.source for total in self.kernel.sums)

    def _parts(self) -> dict[int, Carry]:
        return {held.carry.part: held.carry for held in self.kernel.held}

    def _turned(self) -> list[str]:
        """Memory of torch that is read or written at every step."""
        used = [tile.detail[0] for tile in self.loads] + [store.source for store in self.kernel.stores]
        return list(dict.fromkeys(s.name for s in used if s.rows and s.time and not is_ours(s)))

    def _beginning(self, source: Source) -> str:
        if source.name.startswith("dc"):
            return f"(block * S + seed) * {source.numbers}"
        if not source.rows:
            return f"seed * {source.numbers}"
        if is_ours(source):
            return f"(seed * blocks + block) * {length(source)} * ({source.numbers} * LANES)"
        return f"(seed * B + block * LANES) * {length(source)} * {source.numbers}"

    # Before, between and after the steps

    def _steady(self) -> None:
        for number, nest in enumerate(self.nests.nests):
            if nest.tiles[0].steady:
                self._nest(nest, number)

    def _start(self) -> None:
        back = self.kernel.backward
        for part, carry in self._parts().items():
            held = [held for held in self.kernel.held if held.carry.part == part]
            numbers = math.prod(carry.shape)
            start = held[0].start[0].name
            self.line(f"taken<{numbers}>(state{part}, {start}, {numbers}, live, {'false' if back else 'true'});")
            if held[0].first:
                size = f"{numbers} * LANES * sizeof(float)"
                self.line(f"std::memcpy({held[0].first[0].name}, state{part}, {size});")
        for source in self._written_for_torch():  # some of it may be zero always
            self.line(f"std::memset({source.name}_turned, 0, {source.numbers} * LANES * sizeof(float));")
        for number, total in enumerate(self.kernel.sums):
            lanes = " * LANES" if self._in_lanes(total.terms) else ""
            size = math.prod(axis.size for axis in total.axes)
            self.line(f"std::memset(sum{number}, 0, {size}{lanes} * sizeof(float));")

    def _read(self) -> None:
        """Pointers to what this step has, and what torch has of it turned round."""
        moving = {(s.name, s.shift): s for s in self._sources() if s.time and s.rows and is_ours(s)}
        for source in moving.values():
            place = f"{source.name} + (t + {source.shift}) * ({source.numbers} * LANES)"
            self.line(f"float *const {source.name}_{source.shift} = {place};")
        for source in {tile.detail[0].name: tile.detail[0] for tile in self.loads}.values():
            if not source.rows or is_ours(source):
                continue
            every, numbers = source.every, source.numbers
            place = f"{source.name} + {'t' if every == 1 else f't / {every}'} * {numbers}"
            repeat = "false" if source.dead else "true"
            turn = f"taken<{numbers}>({source.name}_turned, {place}, {length(source)} * {numbers}, live, {repeat});"
            if source.last:
                size = f"{numbers} * LANES * sizeof(float)"
                self.line(f"if (t % {every} == {every} - 1) {turn}")
                self.line(f"else if (step % {every} == 1) std::memset({source.name}_turned, 0, {size});")
            else:
                self.line(turn if every == 1 else f"if (step % {every} == 0) {turn}")

    def _write(self) -> None:
        for source in self._written_for_torch():
            every, numbers = source.every, source.numbers
            place = f"{source.name} + {'t' if every == 1 else f't / {every}'} * {numbers}"
            turn = f"given<{numbers}>({place}, {source.name}_turned, {length(source)} * {numbers}, live);"
            self.line(f"if (t % {every} == {every} - 1) {turn}" if source.last else turn)

    def _written_for_torch(self) -> list[Source]:
        return [
            source
            for source in {store.source.name: store.source for store in self.kernel.stores}.values()
            if not is_ours(source)
        ]

    def _finish(self) -> None:
        for part, carry in self._parts().items():
            held = next(held for held in self.kernel.held if held.carry.part == part)
            if held.end:
                numbers = math.prod(carry.shape)
                self.line(f"given<{numbers}>({held.end[0].name}, state{part}, {numbers}, live);")
        for number, total in enumerate(self.kernel.sums):
            env = self._loops(total.axes)
            lanes = self._in_lanes(total.terms)
            source = self._spot_of_sum(number).at(env)
            place = spot_in(total.source.name, total.source, total.index, lanes=False).at(env)
            self.line(f"*({place}) = {f'lane_total({source})' if lanes else f'*({source})'};")
            self.end(len(total.axes))

    # Effects

    def _effects(self) -> list[Effect]:
        effects = []
        for store in self.kernel.stores:
            source = store.source
            pointer = f"{source.name}_{source.shift}" if is_ours(source) else f"{source.name}_turned"
            effects.append(Effect(store.value, spot_in(pointer, source, store.index), axes_of(store.index)))
        for held in self.kernel.held:
            source, index = held.start
            effects.append(Effect(held.value, spot_in(f"next{held.carry.part}", source, index), held.axes))
        for number, total in enumerate(self.kernel.sums):
            effects += [Effect(term, self._spot_of_sum(number), total.axes, adds=True) for term in total.terms]
        return effects

    def _in_lanes(self, terms: Sequence[Value]) -> bool:
        return all(isinstance(term, Ref) and self.program.batch in term.axes for term in terms)

    def _spot_of_sum(self, number: int) -> Spot:
        total = self.kernel.sums[number]
        return Spot(f"sum{number}", 0, row_major(total.axes), self._in_lanes(total.terms))

    def _assign_effects(self) -> None:
        """Effects that a nest has while it computes what is written, and sums that go where they are added up."""
        self.done: list[Effect] = []
        self.into: dict[Tile, Effect] = {}
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

    def _rests(self, tile: Tile) -> bool:
        own = [e for e in self.effects if isinstance(e.value, Ref) and e.value.tile is tile]
        return self.nests.rests(tile) or any(effect not in self.done for effect in own)

    def _effect(self, effect: Effect) -> None:
        """A nest of its own."""
        env = self._loops(effect.axes)
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

    # Nests

    def _loops(self, axes: Iterable[Axis], letter: str = "i") -> dict[Axis, str]:
        env = {}
        for number, axis in enumerate(axes):
            env[axis] = name = f"{letter}{number}"
            self.begin(f"for (long {name} = 0; {name} < {axis.size}; {name}++)")
        return env

    def _nest(self, nest: Nest, number: int) -> None:
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
            if tile.steady or self._rests(tile):
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

    # Sums and products

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
        env = self._loops(axes)
        lanes = self.program.batch in ref.axes
        across = self.program.batch in tile.detail
        if across:
            self.line("V whole = all(0);")
        if lanes:
            self.begin("for (int v = 0; v < LANES; v += WIDTH)")
        self.line(f"V sum = {first};")
        env |= self._loops(inner, "k")
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
            env = self._loops(axes)
            self._zero(out, env)
            self.end(len(axes))
        env = self._loops(call.around)
        self.line(call.text(env))
        self.end(len(call.around))
        return True

    def _zero(self, out: Spot, env: dict[Axis, str]) -> None:
        if out.lanes:
            self.line(f"for (int v = 0; v < LANES; v += WIDTH) store({out.at(env)} + v, all(0));")
        else:
            self.line(f"*({out.at(env)}) = 0;")


def held_in_order(nests: list[Nest], held: set[Tile]) -> list[Tile]:
    return [tile for nest in nests for tile in nest.tiles if tile in held]


def is_ours(source: Source) -> bool:
    return source.name.startswith(OURS)


def length(source: Source) -> str:
    """How many of what every step has, or several steps share, a sample has."""
    if not source.time:
        return "1"
    if source.every != 1:
        return f"(T / {source.every})"
    return f"(T + {source.extra})" if source.extra else "T"


def number(value: float | bool) -> str:
    if isinstance(value, bool):
        return "1.0f" if value else "0.0f"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    if math.isnan(value):
        return "NAN"
    return f"{float(value)!r}f"
