"""Where the numbers of a node lie, and whether some of them are all."""

from __future__ import annotations

import math

from torch.fx import Node

from nnarena.kernels.compiled import Place
from nnarena.kernels.graph import enumerate_parts, own_shape, unshaped
from nnarena.kernels.index import Index
from nnarena.kernels.rewrite import Reader
from nnarena.kernels.tiles import Ref, Source, Tile


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
