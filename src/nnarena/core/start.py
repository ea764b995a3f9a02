"""`start=…`: the trial whose weights a model begins with, and which weights these are.

    runs/digits/3f2a9c               as a person types it: a store, and a trial of it by its id or the beginning of it
    runs/digits/3f2a9c@5b1f3c0d12ab  settled: behind the @ stands a hash of the weights

What a trial is, is determined by the weights and not by where they lie: its identity has the hash alone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

MARK = "@"
DIGITS = 12


def origin(start: str) -> tuple[str, str]:
    """The place and the hash of a start; the hash is empty as long as it is not settled."""
    place, mark, digest = start.rpartition(MARK)
    settled = mark and len(digest) == DIGITS and set(digest) <= set("0123456789abcdef")
    return (place, digest) if settled else (start, "")


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
