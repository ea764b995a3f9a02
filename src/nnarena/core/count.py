"""Numbers of things, as they are written."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`, `0 trials`, `1,797 samples`: for nouns whose plural ends in s."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
