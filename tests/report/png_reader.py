"""PNG files read back, written apart from what writes them: checksums, sizes, pixels."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import numpy as np


@dataclass
class Png:
    """`pixels` (H, W) are levels of `palette` (n, 3), or (H, W, 3) colours; `clear` are the levels without a colour."""

    pixels: np.ndarray
    palette: np.ndarray | None
    clear: list[int]

    @property
    def colours(self) -> np.ndarray:
        return self.pixels if self.palette is None else self.palette[self.pixels]


def read_png(data: bytes | str) -> Png:
    raw = base64.b64decode(data, validate=True) if isinstance(data, str) else data
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    place, parts = 8, {}
    while place < len(raw):
        (length,) = struct.unpack_from(">I", raw, place)
        name, body = raw[place + 4 : place + 8], raw[place + 8 : place + 8 + length]
        (crc,) = struct.unpack_from(">I", raw, place + 8 + length)
        assert crc == zlib.crc32(name + body), "a checksum is wrong"
        parts[name] = body
        place += 12 + length
    assert next(iter(parts)) == b"IHDR" and list(parts)[-1] == b"IEND"
    width, height, depth, kind, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert depth == 8 and kind in (2, 3) and rest == [0, 0, 0]
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any(), "only rows without a filter are read here"
    pixels = rows[:, 1:].reshape((height, width) if kind == 3 else (height, width, 3))
    palette = np.frombuffer(parts[b"PLTE"], np.uint8).reshape(-1, 3) if kind == 3 else None
    return Png(pixels, palette, [level for level, alpha in enumerate(parts.get(b"tRNS", b"")) if alpha == 0])


def values_of(png: Png, scale: dict) -> np.ndarray:
    """The numbers behind the levels of a picture, as exactly as 255 levels can tell."""
    part = png.pixels / 254
    if scale["log"]:
        return np.exp(np.log(scale["low"]) + part * (np.log(scale["high"]) - np.log(scale["low"])))
    return scale["low"] + part * (scale["high"] - scale["low"])
