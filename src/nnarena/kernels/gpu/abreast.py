"""Vectors that are written as one.

Where the threads of a sample share every sum, they hand on what they write, so that neighbours in memory are written
together, and wait for each other meanwhile: once for every vector. Vectors of one length that lie at even distances in
a memory, such as the gates of a cell, are handed on all at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nnarena.kernels.compiler.index import Affine, Axis, Index, axes_of
from nnarena.kernels.compiler.kernel import Store
from nnarena.kernels.compiler.tiles import Source

MOST = 8  # vectors: more would have to be kept until the last of them is there


@dataclass(frozen=True)
class Abreast:
    """Stores by their numbers, in the order in which they lie, and where all of them are written: the first axis is
    that of each, the others tell them apart, in twos."""

    stores: tuple[int, ...]
    source: Source
    index: Index
    axes: tuple[Axis, ...]


def abreast(stores: Sequence[Store]) -> list[Abreast]:
    """Two, four or eight stores of vectors that can be one."""
    rows: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for number, store in enumerate(stores):
        axes, source = axes_of(store.index), store.source
        if len(axes) == 1 and source.kind == "float":
            offset, stride = _flat(store)
            key = (source.name, source.shift, axes[0].size, axes[0].pad, stride)
            rows.setdefault(key, []).append((offset, number))
    found = []
    for row in rows.values():
        found += [_one(stores, run) for run in _runs(sorted(row))]
    return found


def as_one(texts: Sequence[str]) -> str:
    """All of these as one tile, whose last axis tells neighbours apart, and the one before it pairs of them."""
    if len(texts) == 1:
        return texts[0]
    return f"tl.join({as_one(texts[::2])}, {as_one(texts[1::2])})"


def _flat(store: Store) -> tuple[int, int]:
    """The first place in a memory that is written, and the distance to the next."""
    place, distance, stride = store.source.start, 0, 1
    for part, size in zip(reversed(store.index), reversed(store.source.shape), strict=True):
        place += part.offset * stride
        distance += sum(step for _, step in part.terms) * stride
        stride *= size
    return place, distance


def _runs(row: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Parts of a row at even distances, of two, four or eight."""
    runs: list[list[tuple[int, int]]] = []
    while len(row) > 1:
        distance = row[1][0] - row[0][0]
        even = itertools.takewhile(lambda pair, by=distance: pair[1][0] - pair[0][0] == by, itertools.pairwise(row))
        length = min(MOST, 1 << int(math.log2(1 + len([*even]))))
        runs.append(row[:length])
        row = row[length:]
    return runs


def _one(stores: Sequence[Store], run: list[tuple[int, int]]) -> Abreast:
    (offset, first), (after, _) = run[:2]
    store = stores[first]
    (axis,) = axes_of(store.index)
    count = int(math.log2(len(run)))
    twos = tuple(Axis(2) for _ in range(count))  # the last tells neighbours apart
    steps = [(two, (after - offset) << (count - 1 - place)) for place, two in enumerate(twos)]
    source = replace(store.source, shape=(store.source.numbers,), start=0)
    index = (Affine(offset, ((axis, _flat(store)[1]), *steps)),)
    return Abreast(tuple(number for _, number in run), source, index, (axis, *twos))
