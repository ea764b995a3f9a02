"""Numbers as pictures: a level a number, a palette that suits what they mean, and the scale to be written beside them.

    level = round(254 · (v − low) / (high − low))

Where `log`, v, low and high are logarithms.

grey      of images: dark is little, light is much
heat      of shares and relevances, which are never negative; by the logarithm where they differ a hundredfold or more,
          down to a ten thousandth of the largest
signed    of numbers on both sides of zero: blue below, orange above, zero is white; low = −high
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nnarena.report.png import LEVELS, NOTHING, coloured_png, indexed_png

Kind = Literal["grey", "heat", "signed"]
COLOURS: dict[Kind, list[tuple[int, int, int]]] = {
    "grey": [(0, 0, 0), (255, 255, 255)],
    "heat": [(14, 10, 58), (92, 22, 112), (178, 42, 96), (236, 98, 54), (250, 184, 76), (253, 250, 200)],
    "signed": [(18, 64, 150), (112, 162, 214), (248, 247, 244), (235, 158, 98), (160, 52, 12)],
}
SPREAD, DEEPEST = 100.0, 1e4  # from which spread on a scale is logarithmic, and how far down it goes


@dataclass(frozen=True)
class Scale:
    """What the darkest and the lightest colour stand for."""

    kind: Kind
    low: float
    high: float
    log: bool = False

    def levels(self, values: np.ndarray) -> np.ndarray:
        """Numbers as levels 0 to 254; where all are the same, the middle of the palette."""
        if self.high <= self.low:
            return np.full(values.shape, LEVELS // 2, np.uint8)
        values, low, high = np.asarray(values, np.float64), self.low, self.high
        if self.log:
            values, low, high = np.log(np.maximum(values, low)), np.log(low), np.log(high)
        part = (values - low) / (high - low)
        return np.rint(np.clip(part, 0, 1) * (LEVELS - 1)).astype(np.uint8)


def scale_of(kind: Kind, values: np.ndarray) -> Scale:
    """A scale that holds all of these numbers; numbers that are not finite do not count."""
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if kind == "signed":
        high = max(abs(low), abs(high))
        low = -high
    if kind == "heat" and high >= SPREAD * max(low, 0.0) and high > 0:
        return Scale(kind, max(low, high / DEEPEST), high, log=True)
    return Scale(kind, low, high)


def palette(kind: Kind) -> np.ndarray:
    """(255, 3): the colours of a kind and what lies between them."""
    anchors = np.array(COLOURS[kind], np.float64)
    places = np.linspace(0, len(anchors) - 1, LEVELS)
    return np.stack([np.interp(places, np.arange(len(anchors)), column) for column in anchors.T], 1).round()


def gradient(kind: Kind) -> str:
    """The palette for a style sheet, from low to high."""
    return f"linear-gradient(90deg, {', '.join(f'rgb{colour}' for colour in COLOURS[kind])})"


def map_png(values: np.ndarray, scale: Scale) -> str:
    """A picture of (C, H, W): the channels one beside the other, a transparent line between them.

    What is not finite has no colour.
    """
    good = np.isfinite(values)
    levels = np.where(good, scale.levels(np.where(good, values, scale.low)), NOTHING).astype(np.uint8)
    between = np.full((levels.shape[1], 1), NOTHING, np.uint8)
    columns = [part for channel in levels for part in (channel, between)][:-1]
    return encoded(indexed_png(np.concatenate(columns, 1), palette(scale.kind)))


def image_png(pixels: np.ndarray, white: float) -> str:
    """An image (C, H, W) as people see it: in colour if it has three channels, else the first one in grey."""
    if len(pixels) != 3:
        return map_png(pixels[:1], Scale("grey", min(0.0, float(pixels.min())), white))
    low = min(0.0, float(pixels.min()))
    part = np.clip((pixels.astype(np.float64) - low) / max(white - low, 1e-12), 0, 1)
    return encoded(coloured_png(np.rint(part * 255).transpose(1, 2, 0)))


def encoded(png: bytes) -> str:
    return base64.b64encode(png).decode()


def as_dict(scale: Scale) -> dict[str, Any]:
    return {"kind": scale.kind, "low": scale.low, "high": scale.high, "log": scale.log}
