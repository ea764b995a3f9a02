"""Tiles that are computed at once: products that share a wait for the matrix units, sums that share an exchange."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from nnarena.kernels.compiler.tiles import Ref, Tile, padded

TOGETHER = 64  # rows that four warps multiply at once


def joined(tiles: list[Tile]) -> dict[Tile, list[Tile]]:
    """Products that are added up, four or two of one depth as one, which is as deep as all: by the last of them.

    Of those that four warps multiply at once, and wait for.
    """
    found: dict[Tile, list[Tile]] = {}
    for last in tiles:
        if last.op != "dot" or last.open or padded(last.detail[0]) < TOGETHER:
            continue
        chain = [last]
        while len(chain[0].args) > 2:
            chain.insert(0, chain[0].args[2].tile)
        while chain:
            depth = padded(chain[0].detail[1])
            alike = len([*itertools.takewhile(lambda tile, depth=depth: padded(tile.detail[1]) == depth, chain)])
            count = 4 if alike >= 4 else min(alike, 2)
            if count > 1:
                found[chain[count - 1]] = chain[:count]
            chain = chain[count:]
    return found


def parted(tiles: list[Tile]) -> dict[Tile, list[Tile]]:
    """Products of the same numbers with different columns of weights, four or two as one, whose result is parted: by
    the first of them.

    Of those that four warps multiply at once, and wait for.
    """
    alike: dict[tuple[Any, ...], list[Tile]] = {}
    for tile in tiles:
        if tile.op != "dot" or tile.steady or tile.open or tile.args[2:] or padded(tile.detail[0]) < TOGETHER:
            continue
        left, right = tile.args[0], tile.args[1]
        rows, inner, columns = tile.detail
        if right.tile.steady and 4 * padded(columns) <= TOGETHER:
            order = tuple(left.axes.index(axis) for axis in (*rows, *inner))
            alike.setdefault((left.tile, order, padded(columns)), []).append(tile)
    found: dict[Tile, list[Tile]] = {}
    for products in alike.values():
        while len(products) > 1:
            count = 4 if len(products) >= 4 else 2
            found[products[0]], products = products[:count], products[count:]
    return found


@dataclass(frozen=True)
class Chain:
    """Additions of vectors one after the other: what they add up, sums that can be one together, and the tiles that
    need not be computed by themselves then."""

    terms: list[list[Ref]]
    parts: set[Tile]


def summed(tiles: list[Tile], uses: Counter[Tile]) -> dict[Tile, Chain]:
    """Chains in which there are sums over as many numbers, by the last addition. Such sums are one, so that threads
    exchange one instead of several: Σ a + Σ b = Σ (a + b).

    Only of what nobody else needs (`uses` says how often a tile is wanted); else it would be added up twice.
    """
    added = {tile for tile in tiles if _adds(tile)}
    inside = {arg.tile for tile in added for arg in tile.args if arg.tile in added and uses[arg.tile] == 1}
    found: dict[Tile, Chain] = {}
    for tile in (tile for tile in tiles if tile in added and tile not in inside):
        parts: set[Tile] = set()
        alike: dict[Any, list[Ref]] = {}
        for term in _terms(Ref(tile, tile.axes), inside, parts):
            alone = term.tile.op == "sum" and not term.tile.steady and uses[term.tile] == 1
            alike.setdefault(_depth(term) if alone else len(alike), []).append(term)
        together = {term.tile for terms in alike.values() if len(terms) > 1 for term in terms}
        if together:
            found[tile] = Chain(list(alike.values()), parts | together)
    return found


def _adds(tile: Tile) -> bool:
    """Whether a tile is the sum of two vectors."""
    whole = all(isinstance(arg, Ref) and {*arg.axes} == {*tile.axes} for arg in tile.args)
    return tile.op == "map" and tile.detail == "add" and not tile.steady and len(tile.axes) == 1 and whole


def _terms(ref: Ref, inside: Container[Tile], parts: set[Tile]) -> list[Ref]:
    """What a chain adds up, by the names that axes have at its end; other additions in it go into `parts`."""
    names, terms = dict(zip(ref.tile.axes, ref.axes, strict=True)), []
    for arg in (arg.renamed(names) for arg in ref.tile.args):
        if arg.tile in inside:
            parts.add(arg.tile)
            terms += _terms(arg, inside, parts)
        else:
            terms.append(arg)
    return terms


def _depth(term: Ref) -> tuple[Any, ...]:
    """What two sums have in common that can be one: the sizes of what they add up, and its order."""
    (inside,) = term.tile.args
    return tuple((axis in term.tile.detail, axis.size, axis.pad) for axis in inside.axes)
