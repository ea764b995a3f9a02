"""Test, validation and training samples, in whole batches.

The published arena's rule: one shuffle; the first tenth is the test, the next tenth the validation, each cut down to
whole batches; the rest, cut down too, is for training (40,000 → 3,968 / 3,968 / 32,000 with batches of 128).

Where samples are windows of recorded series, the series are shuffled instead and a series is never shared: what is
left over of the series at a border is dropped.

Where the publisher has set samples aside for the test, those are the test, every one of them, and the validation's
share is taken from the others, in whole series where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnarena.core.errors import ArenaError
from nnarena.core.protocol import Protocol


@dataclass(frozen=True)
class Split:
    """Which samples belong where."""

    test: np.ndarray
    validation: np.ndarray
    train: np.ndarray


def held_out(count: int, protocol: Protocol) -> list[int]:
    """How many samples test and validation get. ArenaError if either has not even one batch."""
    batch, shares = protocol.batch_size, (protocol.test_fraction, protocol.validation_fraction)
    sizes = [_whole(int(count * share), batch) for share in shares]
    if min(sizes) == 0:
        raise ArenaError(
            f"{count} samples are too few: test and validation need a whole batch of {batch} each, "
            f"so at least {int(np.ceil(batch / min(shares)))} samples, or a smaller --batch-size."
        )
    return sizes


def split(
    count: int,
    series: np.ndarray | None,
    protocol: Protocol,
    rng: np.random.Generator,
    set_aside: np.ndarray | None = None,
) -> Split:
    if set_aside is not None:
        return _as_published(set_aside, series, protocol, rng)
    batch, sizes = protocol.batch_size, held_out(count, protocol)
    parts = _by_sample(count, sizes, rng) if series is None else _by_series(series, sizes, rng)
    train = parts[2][: _whole(len(parts[2]), batch)]
    if len(train) == 0 or any(len(part) < size for part, size in zip(parts, sizes, strict=False)):
        raise ArenaError(
            f"{count} samples in {'' if series is None else f'{len(np.unique(series))} series '}leave nothing "
            f"to train on with batches of {batch}: give more samples or a smaller --batch-size."
        )
    return Split(test=parts[0], validation=parts[1], train=train)


def _as_published(
    set_aside: np.ndarray, series: np.ndarray | None, protocol: Protocol, rng: np.random.Generator
) -> Split:
    """All that was set aside is the test; one shuffle of the others, whose first part is the validation."""
    batch = protocol.batch_size
    test, others = np.flatnonzero(set_aside), np.flatnonzero(~set_aside)
    sizes = [_whole(int(len(others) * protocol.validation_fraction), batch)]
    parts = _by_sample(len(others), sizes, rng) if series is None else _by_series(series[others], sizes, rng)
    validation, train = (others[part] for part in parts)
    train = train[: _whole(len(train), batch)]
    if not min(len(test), len(validation), len(train)):
        raise ArenaError(
            f"{len(others)} samples for training and {len(test)} for the test are too few: validation and training "
            f"need a whole batch of {batch} each. Give more samples or a smaller --batch-size."
        )
    return Split(test=test, validation=validation, train=train)


def _whole(count: int, batch: int) -> int:
    return count - count % batch


def _by_sample(count: int, sizes: list[int], rng: np.random.Generator) -> list[np.ndarray]:
    return np.split(rng.permutation(count), np.cumsum(sizes))


def _by_series(series: np.ndarray, sizes: list[int], rng: np.random.Generator) -> list[np.ndarray]:
    """Whole series until a part is full; a part is then cut to its size, and shuffled."""
    names, owner = np.unique(series, return_inverse=True)
    counts = np.bincount(owner)
    order = rng.permutation(len(names))
    parts, taken = [], 0
    for size in sizes:
        upto = taken + int(np.searchsorted(np.cumsum(counts[order[taken:]]), size)) + 1
        parts.append(_members(owner, order[taken:upto], rng)[:size])
        taken = upto
    return [*parts, _members(owner, order[taken:], rng)]


def _members(owner: np.ndarray, series: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.flatnonzero(np.isin(owner, series)))
