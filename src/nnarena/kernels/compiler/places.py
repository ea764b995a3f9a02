"""Where the numbers of a node lie, how they get there, and whether some of them are all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from torch.fx import Node

from nnarena.kernels.compiler.compiled import Place
from nnarena.kernels.compiler.graph import enumerate_parts, own_shape, shape_of, unshaped
from nnarena.kernels.compiler.index import Affine, Index
from nnarena.kernels.compiler.kernel import Kernel, Store, needed_tiles
from nnarena.kernels.compiler.rewrite import Reader
from nnarena.kernels.compiler.tiles import Ref, Source, Tile

T = TypeVar("T")
HERE = Affine(0)  # the one sample that was traced


def rows_of(memory: Source, node: Node, start: int = 0) -> Place:
    """Where the rows of a node lie, from some number or column of a memory on."""
    *rows, width = own_shape(node)
    between = memory.shape[-1] if rows else width
    return Place(memory.name, start, math.prod(rows), pitch=0 if between == width else between)


def source_of(place: Place, node: Node, numbers: int, dead: bool) -> Source:
    """The same the other way round: a node, to be read at its place in a memory of so many numbers."""
    *rows, width = own_shape(node)
    extra = int(place.name.startswith("hist"))
    shape = (*rows, place.pitch or width)
    return Source(place.name, shape, rows=True, time=True, extra=extra, dead=dead, start=place.start, width=numbers)


def everywhere(reader: Reader, shape: tuple[int, ...], body: Callable[[Index], T]) -> list[T]:
    """`body(index)` for all of a tensor, cut where what it reads has seams."""

    def inside(index: Index) -> list[T]:
        if len(index) == len(shape):
            return [body(index)]
        rest = reader.over(shape[len(index)], lambda part, _: inside((*index, part)))
        return [result for results in rest for result in results]

    return inside(())


def stores(reader: Reader, kernel: Kernel, node: Node, source: Source, place: int | None = None) -> list[Store]:
    """A node written to memory; in the pieces in which it is computed anyway, if these are all of it.

    `place` is where it is written among several that share the memory.
    """
    shape = own_shape(node)
    front = (HERE,) if shape != shape_of(node) else ()
    where = () if place is None else (Affine(place),)
    needed = needed_tiles(kernel)
    pieces = [
        (index[len(front) :], value)
        for index, value in reader.places.get(node, [])
        if isinstance(value, Ref) and value.tile in needed
    ]
    if is_partition([index for index, _ in pieces], shape):
        return [Store(source, (*where, *index), value) for index, value in pieces]
    return everywhere(reader, shape, lambda index: Store(source, (*where, *index), reader.read(node, (*front, *index))))


def is_one_of(tiles: set[Tile], reader: Reader, node: Node) -> bool:
    """Whether all numbers of a node are read as one of these tiles."""
    for seen in dict.fromkeys((node, unshaped(node))):
        pieces = [
            index[-len(own_shape(seen)) :]
            for index, value in reader.places.get(seen, [])
            if isinstance(value, Ref) and value.tile in tiles
        ]
        if is_partition(pieces, own_shape(seen)):
            return True
    parts = [part for _, part in enumerate_parts(node)[1:]]
    return bool(parts) and all(is_one_of(tiles, reader, part) for part in parts)


def is_partition(pieces: list[Index], shape: tuple[int, ...]) -> bool:
    """Whether these indices reach every element once."""
    found: list[int] = []
    for index in pieces:
        flat, stride = [0], 1
        for part, size in zip(reversed(index), reversed(shape), strict=True):
            flat = [place + stride * part.offset for place in flat]
            for axis, step in part.terms:
                flat = [place + stride * step * number for place in flat for number in range(axis.size)]
            stride *= size
        found += flat
    return len(found) == math.prod(shape) and len(set(found)) == len(found)
