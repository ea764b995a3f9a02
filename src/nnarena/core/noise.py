"""Random numbers that are a function of what they are for: no generator, no state, nothing to store.

    u = uniform(key, index, count);   z = normal(key, index, count)

The number for (key, index, place) is a hash of the three, so a run that continues finds the same numbers as one that
was never stopped, in any order of the work, alone or in company, and with the same bits on every device. It is plain
arithmetic on tensors: it can be recorded in a CUDA graph, and another key in the same memory gives other numbers.

The hash is two rounds of multiplication and shifts on 32 bits, with the constants of Wellons' hash-prospector
("16 21f0aaad 15 735a2d97 15"). Good enough to crop images by; not for secrets.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = 0xFFFF_FFFF
GOLDEN = 0x9E37_79B9  # 2³² divided by the golden ratio: neighbours land far apart
BITS = 23  # so that the middle of every step is a float32


def uniform(key: Tensor, index: Tensor, count: int) -> Tensor:
    """Numbers (…, count) strictly between 0 and 1, by a `key` of 63 bits and an `index` (…) below 2³²."""
    low, high = key & MASK, key >> 32
    state = _mix((_mix(_mix(low) ^ high) + index) & MASK)[..., None]
    places = torch.arange(1, count + 1, device=index.device)
    numbers = _mix((state + _mix(places * GOLDEN & MASK)) & MASK)
    numbers = _mix((numbers + state * 3) & MASK)
    return ((numbers >> (32 - BITS)).float() + 0.5) / 2**BITS


def normal(key: Tensor, index: Tensor, count: int) -> Tensor:
    """Standard normal numbers (…, count), likewise: Φ⁻¹ of the uniform ones, which lie within ±5.3."""
    return torch.erfinv(2 * uniform(key, index, count) - 1) * 2**0.5


def _mix(x: Tensor) -> Tensor:
    """A permutation of the numbers below 2³² in which every bit depends on every other."""
    x = ((x ^ (x >> 16)) * 0x21F0_AAAD) & MASK
    x = ((x ^ (x >> 15)) * 0x735A_2D97) & MASK
    return x ^ (x >> 15)
