"""From tiles to the text of a loop in C++, for a CPU.

A program has a block of samples, one in every lane of its vectors (`lanes.hpp`). Memory that only our loops read has
the lanes last as well: (seeds, blocks, steps, numbers, LANES). Memory of torch has samples in front, and is turned
round as it is read and written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nnarena.kernels.compiler.compiled import Text
from nnarena.kernels.compiler.kernel import Kernel, arguments, needed_tiles
from nnarena.kernels.compiler.plan import LANES
from nnarena.kernels.compiler.tiles import Carry, Ref, Source, Tile
from nnarena.kernels.cpu.nest import NestWriter, effects_of, is_ours, spot_of_sum
from nnarena.kernels.cpu.nests import Room, own_axes
from nnarena.kernels.cpu.spots import spot_in

BEGIN = """#include "lanes.hpp"

using namespace lanes;

static void program(float *const *memory, const long T, const long B, const long E, const long S, const long seed,
                    const long block, float *const room) {
    const long live = B - block * LANES < LANES ? B - block * LANES : LANES;
    const long blocks = (B + LANES - 1) / LANES;
"""
END = """}}

extern "C" void {name}(float *const *memory, long T, long B, long E, long S, long threads) {{
    const long blocks = (B + LANES - 1) / LANES;
    shared_out(S * blocks, threads, {room}, [&](long number, float *room) {{
        program(memory, T, B, E, S, number / blocks, number % blocks, room);
    }});
}}
"""


def write(kernel: Kernel) -> Text:
    return Text(Writer(kernel).text(), arguments(kernel), warps=1)


class Writer(NestWriter):
    def __init__(self, kernel: Kernel) -> None:
        needed = needed_tiles(kernel)
        tiles = [tile for tile in kernel.program.tiles if tile in needed]
        for number, tile in enumerate(tiles):
            tile.name = f"v{number}"
        super().__init__(kernel, tiles, effects_of(kernel))
        self.loads = [tile for tile in tiles if tile.op == "load"]
        self.room = Room()

    def text(self) -> str:
        kernel, nests = self.kernel, self.nests.nests
        self.indent = 1
        self._places()
        for nest in nests:
            if nest.tiles[0].steady:
                self.nest(nest)
        self._start()
        self.begin("for (long step = 0; step < T; step++)")
        self.line(f"const long t = {'T - 1 - step' if kernel.backward else 'step'};")
        self._read()
        for nest in nests:
            if not nest.tiles[0].steady:
                self.nest(nest)
        for effect in self.effects:
            if effect not in self.done:
                self.effect(effect)
        self._write()
        for part in self._parts():
            self.line(f"std::swap(state{part}, next{part});")
        self.end()
        self._finish()
        return BEGIN + "\n".join(self.lines) + "\n" + END.format(name=kernel.name, room=self.room.size)

    def _places(self) -> None:
        """Pointers to all memory. What is held during all steps comes first; tiles share what is left."""
        sources = {source.name: source for source in self._sources()}
        for place, name in enumerate(arguments(self.kernel)):
            self.line(f"float *const {name} = memory[{place}] + {beginning(sources[name])};")
        for part, carry in self._parts().items():
            for name in ("state", "next"):
                self._room_for(f"{name}{part}", math.prod(carry.shape) * LANES, constant=False)
        for source in {
            source.name: source for source in (*self._read_from_torch(), *self._written_for_torch())
        }.values():
            self._room_for(f"{source.name}_turned", source.numbers * LANES)
        for number, total in enumerate(self.kernel.sums):
            self._room_for(f"sum{number}", spot_of_sum(self.kernel, number).numbers(total.axes))
        for tile in (tile for nest in self.nests.nests for tile in nest.tiles if tile.steady):
            self._room_for(tile.name, self._numbers(tile))
        self._room_for_tiles()

    def _room_for(self, name: str, numbers: int, constant: bool = True) -> int:
        begin = self.room.take(numbers)
        self.line(f"float *{'const ' if constant else ''}{name} = room + {begin};")
        return begin

    def _room_for_tiles(self) -> None:
        last: dict[int, list[tuple[int, int]]] = {}
        for number, nest in enumerate(self.nests.nests):
            for tile in nest.tiles:
                if tile.steady or tile in self.into or not self.rests(tile):
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

    def _read_from_torch(self) -> list[Source]:
        sources = {tile.detail[0].name: tile.detail[0] for tile in self.loads}
        return [source for source in sources.values() if source.rows and not is_ours(source)]

    def _written_for_torch(self) -> list[Source]:
        sources = {store.source.name: store.source for store in self.kernel.stores}
        return [source for source in sources.values() if not is_ours(source)]

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
            size = spot_of_sum(self.kernel, number).numbers(total.axes)
            self.line(f"std::memset(sum{number}, 0, {size} * sizeof(float));")

    def _read(self) -> None:
        """Pointers to what this step has, and what torch has of it turned round."""
        moving = {(s.name, s.shift): s for s in self._sources() if s.time and s.rows and is_ours(s)}
        for source in moving.values():
            place = f"{source.name} + (t + {source.shift}) * ({source.numbers} * LANES)"
            self.line(f"float *const {source.name}_{source.shift} = {place};")
        for source in self._read_from_torch():
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

    def _finish(self) -> None:
        for part, carry in self._parts().items():
            held = next(held for held in self.kernel.held if held.carry.part == part)
            if held.end:
                numbers = math.prod(carry.shape)
                self.line(f"given<{numbers}>({held.end[0].name}, state{part}, {numbers}, live);")
        for number, total in enumerate(self.kernel.sums):
            env, spot = self.loops(total.axes), spot_of_sum(self.kernel, number)
            place = spot_in(total.source.name, total.source, total.index, lanes=False).at(env)
            self.line(f"*({place}) = {'lane_total' if spot.lanes else '*'}({spot.at(env)});")
            self.end(len(total.axes))


def length(source: Source) -> str:
    """How many of what every step has, or several steps share, a sample has."""
    if not source.time:
        return "1"
    if source.every != 1:
        return f"(T / {source.every})"
    return f"(T + {source.extra})" if source.extra else "T"


def beginning(source: Source) -> str:
    """Where the memory of a program begins."""
    if source.name.startswith("dc"):
        return f"(block * S + seed) * {source.numbers}"
    if not source.rows:
        return f"seed * {source.numbers}"
    if is_ours(source):
        return f"(seed * blocks + block) * {length(source)} * ({source.numbers} * LANES)"
    return f"(seed * B + block * LANES) * {length(source)} * {source.numbers}"
