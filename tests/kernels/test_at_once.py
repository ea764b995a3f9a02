"""Sums that are added to each other are one."""

from __future__ import annotations

from collections import Counter

import pytest
from sm90 import FEW, loop_of

from nnarena.kernels.compiler.index import Axis
from nnarena.kernels.compiler.tiles import Ref, Tile
from nnarena.kernels.gpu.at_once import summed

ROWS = Axis(8)


def total(size, pad=1):
    """A sum over so many numbers."""
    inner = Axis(size, pad)
    whole = Tile("load", (), (ROWS, inner))
    return Tile("sum", (Ref(whole, whole.axes),), (ROWS,), (inner,))


def plus(one, other):
    return Tile("map", (Ref(one, (ROWS,)), Ref(other, (ROWS,))), (ROWS,), "add")


def used(*tiles):
    return Counter(arg.tile for tile in tiles for arg in tile.args)


def test_sums_over_as_many_numbers_are_one():
    a, b, c, d = total(64), total(16), total(64), total(16)
    first = plus(a, b)
    second = plus(first, c)
    third = plus(second, d)
    tiles = [a, b, first, c, second, d, third]
    found = summed(tiles, used(*tiles))
    assert list(found) == [third]
    assert [[term.tile for term in terms] for terms in found[third].terms] == [[a, c], [b, d]]
    assert found[third].parts == {a, b, c, d, first, second}


def test_what_others_need_is_left_alone():
    a, b, c = total(64), total(64), total(64)
    first = plus(a, b)
    second = plus(first, c)
    tiles = [a, b, first, c, second]
    twice = used(*tiles) + Counter([first])  # the first is written, too
    (chain,) = summed(tiles, twice).values()
    assert [[term.tile for term in terms] for terms in chain.terms] == [[a, b]] and chain.parts == {a, b}
    assert not summed(tiles, used(*tiles) + Counter([a, first, c])), "a is wanted for itself"
    assert not summed(tiles, used(*tiles) + Counter([a, b, c]))


def test_padding_makes_a_difference():
    a, b = total(9), total(9, pad=32)
    tiles = [a, b, plus(a, b)]
    assert not summed(tiles, used(*tiles))


@pytest.mark.parametrize(("cell", "sums"), [("lstm", 1), ("gru", 4)])
def test_gates_share_a_sum_on_the_way_back(cell, sums):
    """Of gru, two pieces of the state each get one of 64 units and one of 16."""
    back = loop_of(cell).at(FEW).compiled.backward.source
    assert back.partition("for step")[2].count("tl.sum(") == sums
