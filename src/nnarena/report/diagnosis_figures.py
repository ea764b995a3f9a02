"""The drawings of a diagnosis: curves over steps, a strip around 1, bars in table cells. Colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeGuard

from nnarena.report.numbers import number
from nnarena.report.strips import tick

WIDTH, HEIGHT = 940, 380
LEFT, RIGHT, TOP, BOTTOM = 74, 14, 12, 44
BAR = 120  # pixels of the longest bar
STRIP, STRIP_EDGE = 420, 10


@dataclass(frozen=True)
class Curve:
    """`values[k]` stands above k; `color` is one of the page's ten, `dashed` is before training."""

    label: str
    values: Sequence[float | None]
    color: int
    dashed: bool


def curves(lines: Sequence[Curve], x_label: str, y_label: str) -> str:
    """Positive values on a logarithmic axis; what is zero or not a number is a gap."""
    logs = [math.log10(value) for line in lines for value in line.values if _shown(value)]
    length = max((len(line.values) for line in lines), default=0)
    if not logs or length < 2:
        return '<p class="meta">There is no gradient to draw.</p>'
    low, high = _widened(min(logs), max(logs))

    def at(k: int, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * k / (length - 1)
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(value)) / (high - low)

    parts = []
    for value, label in _marks(low, high):
        y = at(0, value)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for k in _whole_ticks(length - 1):
        x = at(k, 10.0**low)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{k}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    for line in lines:
        pieces, pen = [], "M"
        for k, value in enumerate(line.values):
            if not _shown(value):
                pen = "M"
                continue
            x, y = at(k, value)
            pieces.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        kind = f"curve c{line.color}{' before' if line.dashed else ''}"
        parts.append(f'<path class="{kind}" d="{"".join(pieces)}"><title>{escape(line.label)}</title></path>')
        if len(pieces) == 1:
            k, value = next((k, value) for k, value in enumerate(line.values) if _shown(value))
            x, y = at(k, value)
            parts.append(f'<circle class="dot c{line.color}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    label = escape("; ".join(f"{line.label}: from {_end(line, 0)} to {_end(line, -1)}" for line in lines))
    return (
        f'<svg class="figure" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'
        f'<p class="legend">{"".join(map(_legend, lines))}</p>'
    )


def _end(line: Curve, place: int) -> str:
    return number(line.values[place]) if line.values else number(None)


def _legend(line: Curve) -> str:
    dashed = " before" if line.dashed else ""
    return f'<span class="c{line.color}"><i class="swatch{dashed}"></i>{escape(line.label)}</span>'


@dataclass(frozen=True)
class Around:
    """A row of `around_one`: a value with its range."""

    mean: float
    low: float
    high: float
    color: int
    faint: bool


def around_one_axis(rows: Iterable[Around]) -> tuple[float, float]:
    """Ends of an axis that holds all rows and 1."""
    ends = [end for row in rows for end in (row.low, row.high) if math.isfinite(end)]
    low, high = min([1.0, *ends]), max([1.0, *ends])
    air = 0.08 * ((high - low) or 0.5)
    return max(0.0, low - air), high + air


def around_one(row: Around, axis: tuple[float, float]) -> str:
    """One row: the range as a line, the mean as a dot, and where 1 is."""

    def at(value: float) -> float:
        share = (value - axis[0]) / (axis[1] - axis[0])
        return STRIP_EDGE + (STRIP - 2 * STRIP_EDGE) * min(max(share, 0.0), 1.0)

    one, kind = at(1.0), f"strip c{row.color}{' before' if row.faint else ''}"
    return (
        f'<svg class="{kind}" role="img" aria-label="{number(row.mean, 4)}" '
        f'width="{STRIP}" height="22" viewBox="0 0 {STRIP} 22"><path class="one" d="M{one:.1f} 0V22"/>'
        f'<path class="whisker" d="M{at(row.low):.1f} 11H{at(row.high):.1f}"/>'
        f'<circle class="mean" cx="{at(row.mean):.1f}" cy="11" r="4.6"/></svg>'
    )


def around_one_scale(axis: tuple[float, float]) -> str:
    """The axis itself: its ends, and 1."""
    texts = []
    for value, anchor in ((axis[0], "start"), (1.0, "middle"), (axis[1], "end")):
        place = STRIP_EDGE + (STRIP - 2 * STRIP_EDGE) * (value - axis[0]) / (axis[1] - axis[0])
        crowded = value != 1.0 and abs(value - 1.0) < 0.12 * (axis[1] - axis[0])
        if not crowded:
            anchored = (
                "end" if value == 1.0 and place > STRIP - 20 else "start" if value == 1.0 and place < 20 else anchor
            )
            texts.append(f'<text x="{place:.1f}" y="11" text-anchor="{anchored}">{tick(float(f"{value:.2g}"))}</text>')
    return (
        f'<svg class="scale" aria-hidden="true" width="{STRIP}" height="14" viewBox="0 0 {STRIP} 14">'
        f"{''.join(texts)}</svg>"
    )


class Bars:
    """Bars of one column on one axis: logarithmic over decades, from zero where `log` is false."""

    def __init__(self, values: Iterable[float | None], log: bool) -> None:
        self.log = log
        known = [value for value in values if _shown(value)]
        if log:
            logs = [math.log10(value) for value in known]
            low, high = _widened(min(logs, default=0.0), max(logs, default=1.0))
            self.low, self.high = low - 0.1 * (high - low), high
        else:
            self.low, self.high = 0.0, max([*known, 0.0]) or 1.0

    def length(self, value: float | None) -> float:
        if not _shown(value):
            return 0.0
        scaled = math.log10(value) if self.log else value
        return BAR * min(max((scaled - self.low) / (self.high - self.low), 0.0), 1.0)

    def draw(self, before: float | None, after: float | None, has_after: bool) -> str:
        """Before as a faint bar, after below it; the numbers are in the cell beside."""
        pairs = [(before, "faint"), (after, "solid")] if has_after else [(before, "solid")]
        height, top = (7, 1.0) if has_after else (10, 3.5)
        rects = "".join(
            f'<rect class="bar {kind}" x="0" y="{place * (height + 1) + top}" width="{self.length(value):.1f}" '
            f'height="{height}" rx="1.5"/>'
            for place, (value, kind) in enumerate(pairs)
        )
        return f'<svg class="bars" aria-hidden="true" width="{BAR}" height="17" viewBox="0 0 {BAR} 17">{rects}</svg>'


def _shown(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range of logarithms that is at least a decade wide: what is flat must look flat."""
    air = max(0.04 * (high - low), (1 - (high - low)) / 2)
    return low - air, high + air


def _marks(low: float, high: float) -> list[tuple[float, str]]:
    """Where an axis between two logarithms has lines, and what stands at them: at every 1, 2 and 5 if it is short."""
    if high - low > 2:
        return [(10.0**power, _power(power)) for power in _decades(low, high)]
    values = [digit * 10.0**power for power in range(math.floor(low), math.ceil(high)) for digit in (1, 2, 5)]
    return [(value, number(value, 1)) for value in values if low <= math.log10(value) <= high]


def _decades(low: float, high: float) -> list[int]:
    first, last = math.ceil(low), math.floor(high)
    step = max(1, math.ceil((last - first) / 6))
    return [power for power in range(first, last + 1) if power % step == 0] or [round((low + high) / 2)]


def _whole_ticks(last: int) -> list[int]:
    rough = max(last / 8, 1)
    unit = 10 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    return list(range(0, last + 1, step))


def _power(power: int) -> str:
    """10 to a power, as people write it."""
    if -3 <= power <= 3:
        return tick(10.0**power)
    digits = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}"
