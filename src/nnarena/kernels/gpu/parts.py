"""What many programs found, added up: a sum over the first dimension, always in the same order.

Torch has every thread read a column from its beginning to its end, and a few hundred columns keep few of them busy.
Here a program reads all that it adds at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.compiler.tiles import power_of_two
from nnarena.kernels.launch import launch

MOST = 512  # parts that a program reads at once
WIDEST = 512  # columns
NUMBERS = 8_192  # and what it reads in all


def added_up(parts: Tensor) -> Tensor:
    """(P, …) → (…)."""
    count, size = len(parts), parts[0].numel()
    if count == 1:
        return parts[0]
    out = parts.new_empty(parts.shape[1:])
    high = min(MOST, power_of_two(count))
    wide = min(WIDEST, NUMBERS // high)
    launch(add_up, (-(-size // wide),), parts.contiguous(), out, count, size, high, wide, like=parts)
    return out


@triton.jit(do_not_specialize=["count", "size"])
def add_up(found, sums, count, size, HIGH: tl.constexpr, WIDE: tl.constexpr):
    column = tl.program_id(0).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(0, count, HIGH):
        part = (first + tl.arange(0, HIGH)).to(tl.int64)
        there = (part < count)[:, None] & (column < size)[None, :]
        total += tl.load(found + part[:, None] * size + column[None, :], mask=there, other=0.0)
    tl.store(sums + column, tl.sum(total, 0), mask=column < size)
