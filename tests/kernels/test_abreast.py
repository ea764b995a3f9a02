"""Vectors that are written as one: each number where it would be written alone."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sm90 import FEW, loop_of

from nnarena.kernels.compiler.index import Affine, Axis
from nnarena.kernels.compiler.kernel import Store
from nnarena.kernels.compiler.tiles import Ref, Source, Tile
from nnarena.kernels.gpu.abreast import MOST, abreast, as_one

NUMBERS = 512


def store(start, size=4, stride=1, name="memory"):
    axis = Axis(size)
    value = Ref(Tile("load", (), (axis,)), (axis,))
    return Store(Source(name, (NUMBERS,), rows=True, time=True), (Affine(start, ((axis, stride),)),), value)


def places(index, axes, sizes):
    """Where all numbers of a tile lie, by their places in it."""
    (part,) = index
    steps = dict(part.terms)
    found = {}
    for numbers in itertools.product(*map(range, sizes)):
        found[numbers] = part.offset + sum(steps[axis] * number for axis, number in zip(axes, numbers, strict=True))
    return found


def parts(text, numbers=()):
    """What tl.join(a, b) has at its last places, by name."""
    if (match := re.fullmatch(r"tl.join\((.*)\)", text)) is None:
        return {numbers: text}
    inside, depth = match[1], 0
    for at, letter in enumerate(inside):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            first, second = inside[:at], inside[at + 2 :]
            return parts(first, (0, *numbers)) | parts(second, (1, *numbers))
    raise AssertionError(text)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True), st.integers(1, 5), st.sampled_from([1, 2]))
def test_every_number_is_written_where_it_was(starts, distance, stride):
    stores = [store(start * distance, stride=stride) for start in starts]
    groups = abreast(stores)
    members = [number for group in groups for number in group.stores]
    assert len(members) == len(set(members)) and all(len(group.stores) in (2, 4, MOST) for group in groups)
    for group in groups:
        names = parts(as_one([str(number) for number in group.stores]))
        sizes = [axis.size for axis in group.axes]
        for numbers, place in places(group.index, group.axes, sizes).items():
            first, *twos = numbers
            alone = stores[int(names[tuple(twos)])]
            assert place == alone.index[0].offset + stride * first


def test_only_what_is_alike_is_written_as_one():
    assert not abreast([store(0), store(8, size=5), store(16, name="other"), store(24, stride=2)])
    assert [group.stores for group in abreast([store(8), store(0), store(100), store(16), store(24)])] == [(1, 0, 3, 4)]


@pytest.mark.parametrize("cell", ["lstm", "ct_gru"])
def test_gates_are_written_as_one(cell):
    compiled = loop_of(cell).at(FEW).compiled
    saved = [line for line in compiled.forward.source.splitlines() if "tl.store(saved" in line]
    assert saved and all("tl.join(" in line for line in saved[:2]), "four gates, or eight of them"
