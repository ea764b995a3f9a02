"""Dot and whisker in a table cell: every seed a faint dot, their mean and interval on an axis that all rows share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nnarena.report.numbers import number

WIDTH, HEIGHT, EDGE = 210, 26, 8


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`; where the values span decades, these are their decimal logarithms."""

    low: float
    high: float
    log: bool

    def scaled(self, value: float) -> float:
        if not self.log:
            return value
        return math.log10(value) if value > 0 else -math.inf

    def place(self, value: float) -> float:
        """Where a value stands, in pixels; what lies beyond the axis is put at its end."""
        share = (self.scaled(value) - self.low) / (self.high - self.low)
        return EDGE + (WIDTH - 2 * EDGE) * min(max(share, 0.0), 1.0)

    def beyond(self, value: float) -> int:
        """-1 or 1 for a value that lies before or behind the axis, 0 for one on it."""
        value = self.scaled(value)
        return (value > self.high) - (value < self.low)

    def ticks(self) -> list[float]:
        """Round values, three or four of them."""
        first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
        if self.log and last > first:
            return [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 3)))]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        rough = (high - low) / 4
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999)
        places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        return [float(f"{place * step:.10g}") for place in places]


def axis(seeds: Iterable[float], extras: Iterable[float], ends: Iterable[float], may_be_log: bool) -> Axis | None:
    """An axis for all seeds; None if there are none.

    `extras` (baselines, published means) are taken in only if the seeds stay readable. The `ends` of intervals, which
    with few seeds reach far, are cut off at some distance.
    """
    values = list(seeds)
    if not values:
        return None
    log = may_be_log and min(values) > 0 and max(values) / min(values) > 30
    tight = Axis(0, 1, log)
    low, high = tight.scaled(min(values)), tight.scaled(max(values))
    span = (high - low) or abs(high) * 0.02 or 1.0
    near = [value for value in map(tight.scaled, extras) if low - 1.5 * span <= value <= high + 1.5 * span]
    low, high = min([low, *near]), max([high, *near])
    reach = 0.3 * span
    cut = [min(max(value, low - reach), high + reach) for value in map(tight.scaled, ends)]
    low, high = min([low, *cut]), max([high, *cut])
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
            if not axis.beyond(value):  # an end that is cut off has no cap
                parts.append(f'<path class="whisker" d="M{place:.1f} {middle - 4}v8"/>')
    parts += [f'<circle class="seed" cx="{axis.place(value):.1f}" cy="{middle}" r="3.2"/>' for value in seeds]
    if published is not None and not axis.beyond(published):
        place = axis.place(published)
        parts.append(f'<path class="theirs" d="M{place:.1f} {middle - 6.5}l5 6.5l-5 6.5l-5-6.5z"/>')
    if mean is not None:
        place = axis.place(mean)
        way = axis.beyond(mean)
        if not way:
            parts.append(f'<circle class="mean" cx="{place:.1f}" cy="{middle}" r="4.6"/>')
        else:
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
