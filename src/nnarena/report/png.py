"""PNG files of small arrays, by the standard library alone.

A palette image holds a byte a pixel, its level, and says apart which colour a level has: the numbers behind a picture
can be read back from it. Level 255 is transparent.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

LEVELS = 255  # 0 to 254; one more is no colour at all
NOTHING = 255
SIGNATURE = b"\x89PNG\r\n\x1a\n"
INDEXED, COLOURED = 3, 2


def indexed_png(levels: np.ndarray, palette: np.ndarray) -> bytes:
    """Levels (H, W) uint8 in the colours of a palette (255, 3) uint8."""
    clear = bytes([255] * LEVELS + [0])
    colours = _chunk(b"PLTE", palette.astype(np.uint8).tobytes() + bytes(3))
    colours += _chunk(b"tRNS", clear) if (levels == NOTHING).any() else b""
    return _png(levels, INDEXED, colours)


def coloured_png(rgb: np.ndarray) -> bytes:
    """Pixels (H, W, 3) uint8."""
    return _png(rgb, COLOURED)


def _png(pixels: np.ndarray, kind: int, more: bytes = b"") -> bytes:
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels, np.uint8).reshape(height, -1)
    plain = np.concatenate([np.zeros((height, 1), np.uint8), rows], 1)  # each row begins with its filter: none
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
    return SIGNATURE + header + more + _chunk(b"IDAT", zlib.compress(plain.tobytes(), 9)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
