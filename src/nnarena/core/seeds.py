"""Seeds from named axes.

A seed is a hash of what it is for: `derive("poster", "add", 0, "data")`. Two competitors that share the axes share
the numbers, on every machine and in every year; nothing ever depends on the clock or on the order of the work.
"""

from __future__ import annotations

import hashlib
import json


def derive(*axes: str | int) -> int:
    """A non-negative 63-bit integer that depends on every axis and on their order."""
    text = json.dumps(axes, separators=(",", ":"), ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
