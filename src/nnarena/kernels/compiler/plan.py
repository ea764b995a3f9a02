"""What a kernel looks like for a cell of these sizes: how many samples a program holds, and what it keeps.

Two mappings. With one sample a program, weights lie in the registers of its threads, a product is multiplied and added
up there, and a step takes a fraction of a microsecond: for a few hundred sequences nothing is faster. With a block of
samples, one in each row of its tiles, products run on the matrix units, and weights are read once for all rows: for
thousands of sequences.

Where a sample is itself a matrix, such as the tokens of a memory, a block is the rows of a few samples one below the
other, and a warp has one sample; of a few sequences each has a program, and four warps share it: of as many tokens as
one warp multiplies at once, each computes all but what is wide. Where matrices of a sample meet each other (the slots
and links of an addressed memory), threads wait for each other most of the time, and there are ways between the two
(`_plan_for_meeting`). Where nothing is multiplied by a matrix at all, every sample has a warp, or as many as its
numbers keep busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch.fx import Node

from nnarena.kernels.compiler.graph import multiplies, name_of, shape_of
from nnarena.kernels.compiler.tiles import Tile, padded, power_of_two
from nnarena.kernels.compiler.trace import Signature, Traced

HEAVY = 8_192  # weights
RATHER_HEAVY = 17_000  # from which on four warps have no room for them,
QUITE_HEAVY = 20_000  # or for nothing else, if they sum on their own
VERY_HEAVY = 30_000  # that fill the registers of eight warps
LIGHT = 4_096
TINY = 512  # whose products are too small for the matrix units: a warp has a block of samples for itself
SINGLE = 132  # sequences, each of which can have a processor of an H100 or H200 for itself
ROUND = 8 * SINGLE  # sequences, each of which can have a warp there
MANY = 300  # from which on a block of them in a program pays if the weights are HEAVY
VERY_MANY = 4_096  # from which on it pays for every cell that multiplies by weights, or is smaller than a warp
WIDE = 128  # numbers of a state, from which on the threads of a warp have enough of them to sum on their own
FILLED = 32  # numbers of a state that fill a warp
NARROW = 32  # columns that a piece has at least, beside others, in a block of samples
MEETING = 256  # numbers of a matrix that meets others, up to which a block of samples has room for it
MOST_ACROSS = 64  # numbers of a piece, where threads add up what they make of it
UNIT = 16  # rows that the matrix units of one warp multiply at once
DIVIDED = 64  # numbers in a row of a matrix, from which on the warps of a sample divide it
THIN = 4  # features that are so few that they are multiplied one by one
LANES = 32  # samples that a CPU computes at once
EVERYTHING = 1 << 60
EACH = 256  # and so many that keep it busy


@dataclass(frozen=True)
class Plan:
    """rows       samples a program holds
    warps      of 32 threads that compute a program
    precision  of products: bf16x6 and tf32x3 are as good as float32, tf32 is not; ieee does without matrix units
    save       products over at least so many numbers are saved on the way forward; others are computed again
    held       numbers of weights and of their gradients together that a program can hold
    singles    up to this size, a dimension is taken apart into single numbers
    most       what is wider is cut into pieces
    again      whether constants are read at every step instead of being held; not those the matrix units multiply by
    matrices   whether a sample is a matrix that meets weights
    alike      whether a block of samples is cut into pieces of one width, so that every warp has columns of its own;
               else most pieces are wider, and several warps compute the last: more of them wait less
    announce   whether a program says a step ahead what it will read: where there are no more blocks than processors, no
               other works while one waits for memory; and a sample's way back that reads more than its threads can
               hold would only put it aside. To announce much takes time, too: blocks of matrices do not on the way back
    halves     whether a block multiplies by weights in two parts of float16 each, three products instead of six, with
               scales that keep it as good as bf16x6 (`emit_halves`); what is added up after the loops always does
               where bf16x6 is wanted (`emit_sums`)
    lanes      whether a program is one of a CPU, with a sample in every lane of its vectors: no size is odd there
    remade     whether factors of gradients are made again, after the loops, of what is less to be written (`remade`)
    met        whether that is done for those that a sample's matrices make of each other
    divided    numbers in a row of a sample's matrix, from which on its warps divide it among them, while each of them
               has all that is smaller by itself (`emit_divided`); 0 if they divide whatever there is
    aside      whether a vector that is read in other parts than it is computed in is laid aside in memory and read from
               there: by itself each part would be a product that is too narrow to be fast. Memory that all threads
               read is also what they agree on, where they compare numbers
    alone      whether threads sum on their own first, with one sample a program, as those of a single warp do anyway;
               else the threads of a warp share every sum

    More numbers are at hand at once on the way back, which may have other `warps`, `singles` and pieces (`most`), may
    `announce` or read `again` what there is room for on the way forward, and is not `alike`.
    """

    rows: int = 16
    warps: int = 8
    precision: str = "bf16x6"
    save: int = 48
    held: int = 24_000
    singles: int = 1
    most: int = 128
    again: bool = False
    matrices: bool = False
    alike: bool = True
    announce: bool = False
    alone: bool = False
    halves: bool = False
    lanes: bool = False
    remade: bool = False
    met: bool = False
    aside: bool = False
    divided: int = 0
    warps_back: int = 0  # as forward
    most_back: int = 0  # as forward
    again_back: bool = False  # as forward
    singles_back: int = 0  # as forward
    announce_back: bool | None = None  # as forward

    @property
    def knows_whole(self) -> bool:
        """Whether its kernels are told that all blocks are whole: nothing is written on a condition then."""
        return self.matrices and self.rows > 1

    def way_back(self) -> Plan:
        warps, singles = self.warps_back or self.warps, self.singles_back or self.singles
        made = replace(self, warps=warps, singles=singles, most=self.most_back or self.most, alike=False)
        announce = self.announce if self.announce_back is None else self.announce_back
        return replace(made, announce=announce, again=self.again or self.again_back)

    def way_across(self) -> Plan:
        """For kernels that add up gradients after the loops: as on the way back, with memory as on the way forward."""
        made = replace(self.way_back(), announce=self.announce, halves=self.precision == "bf16x6")
        return replace(made, most=min(made.most, MOST_ACROSS))

    def chop(self, size: int) -> list[int]:
        """Where a dimension is cut so that padding to powers of two wastes little.

        80 is 64 + 16. In a block of samples it is 3 · 32 if all are to be `alike`. There a piece takes 32 at least, or
        Triton would let every warp compute everything.
        """
        if self.lanes:
            return [0, size]
        if size <= self.singles:
            return [*range(size + 1)]
        if power_of_two(size) <= max(64, size * 5 // 4) and size <= self.most:
            return [0, size]
        if self.rows > 1:
            widths = [p for p in (128, 64, 32, 16) if p <= self.most and -(-size // p) * p <= size * 5 // 4] or [16]
            return [*range(0, size, widths[0] if self.alike else max(widths[0], 64)), size]
        bounds = [0]
        while (left := size - bounds[-1]) > 0:
            piece = min(self.most, power_of_two(left + 1) // 2)
            bounds.append(size if power_of_two(left) - left < 16 and left <= self.most else bounds[-1] + piece)
        return bounds


def make_plan(traced: Traced, signature: Signature, sequences: int, precision: str = "bf16x6") -> Plan:
    """The plan for so many sequences at once."""
    if precision == "ieee":  # no matrix units: a block has nothing to gain
        sequences = 1
    weights = sum(
        math.prod(shape)
        for (shape, _), gradient in zip(signature.constants, traced.grad_constants, strict=True)
        if len(shape) > 1 and gradient is not None and name_of(gradient) != "zeros_like"
    )
    if tokens := rows_of_a_sample(traced):
        tokens = power_of_two(tokens)
        together = 64 if sequences > SINGLE else 16  # rows that are multiplied at once
        rows = max(1, min(16, together // tokens))
        warps = min(8, max(4, rows * tokens // 16))
        made = Plan(rows, warps, precision, save=16, held=0, again=True, matrices=True, announce=True)
        few = sequences <= SINGLE
        if rows > 1:
            return replace(made, save=32, announce_back=few, remade=True, met=tokens >= UNIT)
        return replace(made, announce_back=few, divided=DIVIDED if few and tokens == UNIT else 0)
    names = {name_of(node) for node in traced.graph.nodes}
    numbers = sum(math.prod(shape) for shape in signature.state)
    if not names & {"mm", "addmm", "bmm"} and numbers >= FILLED:  # nothing that a block of samples would share
        return Plan(rows=1, warps=max(1, min(8, power_of_two(numbers) // EACH)), precision=precision)
    heavy = weights >= HEAVY
    meet = "bmm" in names  # matrices that meet each other
    # A unit with several numbers, such as one for each of its time scales, has them side by side in one thread.
    singles = 8 if any(len(shape) > 1 for shape in signature.state) and not meet else 1
    if meet:
        if heavy:
            largest = max(math.prod(shape) for shape in signature.state)
            return _plan_for_meeting(weights, largest, sequences, precision)
    elif sequences >= MANY and heavy:
        singles = max(singles, projected(traced))
        made = Plan(16, warps=8, precision=precision, save=16, held=0, singles=singles, most=64, announce=True)
        return replace(made, halves=precision == "bf16x6")
    elif sequences >= VERY_MANY:
        warps = 1 if weights < TINY else 4
        return Plan(rows=16, warps=warps, precision=precision, singles=max(1, projected(traced)), most=64)
    if weights < (LIGHT // 2 if meet else LIGHT):  # a warp has room for them, and never waits for another
        return Plan(rows=1, warps=1, precision=precision, held=1_024, save=16)
    wide = any(shape[-1] >= WIDE for shape in signature.state if shape)
    warps = 4 if weights < (QUITE_HEAVY if wide else RATHER_HEAVY) else 8
    back = 16 if weights >= VERY_HEAVY and not wide else warps
    made = Plan(rows=1, warps=warps, warps_back=back, precision=precision, save=16, alone=wide)
    return replace(made, singles=singles, singles_back=1)


def _plan_for_meeting(weights: int, largest: int, sequences: int, precision: str) -> Plan:
    """The plan for a cell whose matrices meet each other, the largest of so many numbers, beside many weights.

    A few samples have a processor each, and eight warps: those of the way forward have room for the weights. More have
    a warp each, which never waits for another. Once a processor has as many of these as it can hold, a block of samples
    is faster: it multiplies by weights on the matrix units, and a warp has the matrices of two samples.
    """
    if sequences > ROUND and largest <= MEETING:
        return Plan(16, warps=8, precision=precision, save=8, held=0, most=64, aside=True, announce_back=True)
    made = Plan(rows=1, warps=8, precision=precision, save=8, held=0, most_back=32, again_back=True, aside=True)
    if sequences > SINGLE:
        return replace(made, warps=1, most=32, again=True, announce_back=True)
    return replace(made, again=weights >= VERY_HEAVY)


def cpu_plan() -> Plan:
    """The plan for a CPU, whatever the cell: gradients of all weights are summed where they are found."""
    return Plan(rows=LANES, save=16, held=EVERYTHING, lanes=True)


def projected(traced: Traced) -> int:
    """Features of an input that is multiplied by weights in the loop, if they are so few that each is one by itself."""
    sizes = (
        shape_of(node.args[-2])[-1]
        for node in traced.graph.nodes
        if name_of(node) in ("mm", "addmm") and node.args[-2] in traced.inputs
    )
    return max((size for size in sizes if size <= THIN), default=0)


def rows_of_a_sample(traced: Traced) -> int:
    """How many rows a sample has that is a matrix and multiplied by weights; none if it is a vector."""
    return max((_rows_that_meet_weights(node, traced) for node in traced.graph.nodes), default=0)


def _rows_that_meet_weights(node: Node, traced: Traced) -> int:
    """The rows of the left side of a product whose right side is a constant, if they are several."""
    several = name_of(node) == "mm" and multiplies(node, traced.constants) and shape_of(node)[0] > 1
    return shape_of(node)[0] if several else 0


def warps_for(tiles: Iterable[Tile], plan: Plan) -> int:
    """So many warps that each has columns of its own in every product, or in the widest; else they compute the same."""
    rooms = [
        padded(tile.detail[0]) // 16 * padded(tile.detail[2]) // 8
        for tile in tiles
        if tile.op == "dot" and not tile.steady
    ]
    if plan.rows == 1 or not rooms:
        return plan.warps
    return max(min(4, plan.warps), min(plan.warps, (min if plan.alike else max)(rooms)))
