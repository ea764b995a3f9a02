"""What a kernel does: all that it reads, computes, carries, adds up and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nnarena.kernels.compiler.index import Axis, Index
from nnarena.kernels.compiler.plan import Plan
from nnarena.kernels.compiler.program import Program
from nnarena.kernels.compiler.tiles import Carry, Ref, Source, Tile, Value


@dataclass(frozen=True)
class Store:
    """A value that is written at every step."""

    source: Source
    index: Index
    value: Value


@dataclass
class Held:
    """A piece of what is carried: where it starts from, what it is after the step, and where it ends, if anywhere."""

    carry: Carry
    piece: tuple[int, ...]
    start: tuple[Source, Index]
    value: Value
    axes: tuple[Axis, ...]
    end: tuple[Source, Index] | None = None
    first: tuple[Source, Index] | None = None  # where the start is copied to before the loop


@dataclass(frozen=True)
class Sum:
    """What is added up over all steps, and written once at the end."""

    source: Source
    index: Index
    terms: list[Value]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Size:
    """How large numbers are at most, over all steps, written once: those of an input, or of all that is multiplied by
    weights."""

    source: Source
    of: Source | None = None


@dataclass
class Kernel:
    """All that a kernel does. Memory of a time-dependent source is (seeds, batch, steps, …).

    If its steps are `apart`, none waits for the one before, and programs share them.
    """

    name: str
    program: Program
    plan: Plan
    backward: bool
    stores: list[Store] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    apart: bool = False


def arguments(kernel: Kernel) -> list[str]:
    """The names of the memory that a kernel is called with, in order."""
    names: dict[str, None] = {}
    for source in _sources(kernel):
        names.setdefault(source.name)
    return sorted(names)


def _sources(kernel: Kernel) -> Iterable[Source]:
    needed = needed_tiles(kernel)
    for tile in kernel.program.tiles:
        if tile.op in ("load", "pick") and tile in needed:
            yield tile.detail[0]
    for store in kernel.stores:
        yield store.source
    for held in kernel.held:
        yield held.start[0]
        for place in (held.end, held.first):
            if place:
                yield place[0]
    for each in (*kernel.sums, *kernel.sizes):
        yield each.source


def needed_tiles(kernel: Kernel) -> set[Tile]:
    """The tiles that something which is written depends on."""
    todo = [store.value for store in kernel.stores] + [held.value for held in kernel.held]
    todo += [term for total in kernel.sums for term in total.terms]
    found: set[Tile] = set()
    while todo:
        value = todo.pop()
        if isinstance(value, Ref) and value.tile not in found:
            found.add(value.tile)
            todo.extend(value.tile.args)
    return found


def uses(kernel: Kernel, tiles: Iterable[Tile]) -> Counter[Tile]:
    """How often each of these tiles is wanted: by another one, or to be written, carried or added up."""
    values = [store.value for store in kernel.stores] + [held.value for held in kernel.held]
    values += [term for total in kernel.sums for term in total.terms] + [arg for tile in tiles for arg in tile.args]
    return Counter(value.tile for value in values if isinstance(value, Ref))


def multiplied(kernel: Kernel) -> set[Tile]:
    """What a block multiplies by weights in halves, a row a sample; nothing if not all of its products are such."""
    products = [tile for tile in needed_tiles(kernel) if tile.op in ("dot", "dots") and not tile.steady]
    weights = [tile.args[1].tile for tile in products]
    rows = [tile.detail[0] for tile in products]
    if not kernel.plan.halves or not all(tile.op == "load" and tile.steady for tile in weights):
        return set()
    return {tile.args[0].tile for tile in products} if set(rows) == {kernel.program.batch_axes} else set()


def name_of(carry: Carry, piece: tuple[int, ...]) -> str:
    return "_".join([carry.name, *map(str, piece)])
