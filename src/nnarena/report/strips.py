"""Dot and whisker in a table cell: every seed a faint dot, their mean and interval on an axis that all rows share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nnarena.report.numbers import number

WIDTH, HEIGHT, EDGE = 230, 26, 8


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, in logarithms where the values span decades."""

    low: float
    high: float
    log: bool

    def place(self, value: float) -> float:
        """Where a value stands, in pixels; what lies beyond the axis is put at its end."""
        if self.log:
            value = math.log10(value) if value > 0 else -math.inf
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        share = (value - low) / (high - low)
        return EDGE + (WIDTH - 2 * EDGE) * min(max(share, 0.0), 1.0)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self) -> list[float]:
        """Round values, two to five of them."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first) / 3))
            if last > first:
                return [10.0**power for power in range(first, last + 1, step)]
        rough = (self.high - self.low) / 3
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        count = int(math.floor(self.high / step + 1e-9)) - first + 1
        return [round((first + place) * step, 12) for place in range(count)]


def axis(seeds: Iterable[float], extras: Iterable[float], ends: Iterable[float], may_be_log: bool) -> Axis | None:
    """An axis for all seeds. `extras` (baselines, published means) widen it only if it stays readable, and so do the
    `ends` of intervals, which with few seeds reach far; None if there is nothing to show."""
    values = sorted(seeds)
    if not values:
        return None
    low, high = values[0], values[-1]
    log = may_be_log and low > 0 and high / low > 30
    span = (math.log10(high / low) if log else high - low) or abs(high) * 0.02 or 1.0
    for share, candidates in ((1.5, extras), (0.3, ends)):
        for value in candidates:
            if log and value <= 0:
                continue
            beyond_low = math.log10(low / value) if log else low - value
            beyond_high = math.log10(value / high) if log else value - high
            limit = share * span
            if share == 0.3:  # an interval's end is cut off rather than left out
                beyond_low, beyond_high = min(beyond_low, limit), min(beyond_high, limit)
            if 0 < beyond_low <= limit:
                low = low / 10**beyond_low if log else low - beyond_low
            if 0 < beyond_high <= limit:
                high = high * 10**beyond_high if log else high + beyond_high
    if low == high:
        low, high = low - span / 2, high + span / 2
    return Axis(low, high, log)


def strip(
    axis: Axis,
    seeds: list[float],
    mean: float | None,
    interval: tuple[float, float] | None,
    published: float | None,
    label: str,
) -> str:
    """The drawing of one row. Colours come from the page's style sheet; `label` says the same in words."""
    middle = HEIGHT / 2
    parts = [_grid(axis)]
    if interval:
        left, right = axis.place(interval[0]), axis.place(interval[1])
        parts.append(f'<path class="whisker" d="M{left:.1f} {middle}H{right:.1f}"/>')
        for value, place in zip(interval, (left, right), strict=True):
            if axis.holds(value):  # an end that is cut off has no cap
                parts.append(f'<path class="whisker" d="M{place:.1f} {middle - 4}v8"/>')
    parts += [f'<circle class="seed" cx="{axis.place(value):.1f}" cy="{middle}" r="3.2"/>' for value in seeds]
    if published is not None and axis.holds(published):
        place = axis.place(published)
        parts.append(f'<path class="theirs" d="M{place:.1f} {middle - 6.5}l5 6.5l-5 6.5l-5-6.5z"/>')
    if mean is not None:
        place = axis.place(mean)
        if axis.holds(mean):
            parts.append(f'<circle class="mean" cx="{place:.1f}" cy="{middle}" r="4.6"/>')
        else:
            way = -1 if mean < axis.low else 1
            parts.append(f'<path class="mean" d="M{place - way * 2:.1f} {middle - 5}l{way * 8} 5l{-way * 8} 5z"/>')
    return (
        f'<svg class="strip" role="img" aria-label="{label}" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'
    )


def scale(axis: Axis) -> str:
    """The axis itself, for the head of the column."""
    texts = []
    for value in axis.ticks():
        place = axis.place(value)
        anchor = "start" if place < 24 else "end" if place > WIDTH - 24 else "middle"
        texts.append(f'<text x="{place:.1f}" y="11" text-anchor="{anchor}">{tick(value)}</text>')
    return (
        f'<svg class="scale" aria-hidden="true" width="{WIDTH}" height="14" '
        f'viewBox="0 0 {WIDTH} 14">{"".join(texts)}</svg>'
    )


def tick(value: float) -> str:
    """`0.1` rather than `0.100`."""
    text = number(value, 4)
    digits, e, power = text.partition("e")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + e + power


def _grid(axis: Axis) -> str:
    lines = "".join(f"M{axis.place(value):.1f} 0V{HEIGHT}" for value in axis.ticks())
    return f'<path class="grid" d="{lines}"/>'
