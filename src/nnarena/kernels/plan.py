"""What a kernel looks like for a cell of these sizes: how many samples a program holds, and what it keeps.

Two mappings. In the first a program holds a block of samples, one in each row of its tiles: products with weights run on
the matrix units, and the weights are read once for all rows. Where a sample is itself a matrix that meets weights (the
tokens of a memory), its rows fill the matrix units alone, and a program holds one sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch.fx import Node

from nnarena.kernels.rewrite import name_of, shape_of
from nnarena.kernels.tiles import Tile, padded, power_of_two
from nnarena.kernels.trace import Traced

SAVED = 48  # a product over at least so many is saved for the way back; below, it is cheaper to compute it again
HELD = 33_000  # numbers of weights and of their gradients together that a program can hold


@dataclass(frozen=True)
class Plan:
    """rows       samples a program holds
    warps      of 32 threads that compute a program
    precision  of products: bf16x6 and tf32x3 are as good as float32, tf32 is not
    save       whether products are saved on the way forward, or computed again on the way back
    """

    rows: int = 16
    warps: int = 8
    precision: str = "bf16x6"
    save: bool = True


def make_plan(traced: Traced, precision: str = "bf16x6") -> Plan:
    if any(_meets_weights_as_a_matrix(node, traced) for node in traced.graph.nodes):
        return Plan(rows=1, warps=4, precision=precision)
    return Plan(precision=precision)


def _meets_weights_as_a_matrix(node: Node, traced: Traced) -> bool:
    """A product whose left side has several rows a sample, and whose right side is a constant."""
    if node.op != "call_function" or name_of(node) != "mm":
        return False
    left, right = node.args
    while isinstance(right, Node) and right.op == "call_function" and name_of(right) in ("t", "transpose", "permute"):
        right = right.args[0]
    return right in traced.constants and shape_of(left)[0] > 1


def warps_for(tiles: Iterable[Tile], most: int) -> int:
    """So many warps that each has columns of its own in every product; else they compute the same twice."""
    rooms = [
        padded(tile.detail[0]) // 16 * padded(tile.detail[2]) // 8 for tile in tiles if tile.op == "dot" and not tile.steady
    ]
    return max(4, min(most, *rooms)) if rooms else most


def chop(size: int, most: int = 128) -> list[int]:
    """Where a dimension is cut: into equal powers of two, so that little is padded: 80 is 3 · 32, not 128."""
    if power_of_two(size) <= max(64, size * 5 // 4) and size <= most:
        return [0, size]
    piece = next(p for p in (128, 64, 32, 16) if p <= most and (-(-size // p) * p <= size * 5 // 4 or p == 16))
    return [*range(0, size, piece), size]
