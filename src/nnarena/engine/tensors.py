"""Tensors in files, without pickles: the safetensors format.

Eight bytes with the length of a header, the header (JSON: name → type, shape, place), then the numbers. Written here
in a few lines so that the engine needs torch and numpy alone; any safetensors reader opens the files. The header's
metadata carries a checksum of all the rest, so that a damaged file is told from a whole one.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnarena.core.errors import StoreError
from nnarena.core.files import replacing

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {name: dtype for dtype, name in NAMES.items()}
CHECKSUM = "crc32"


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write all tensors to one file, atomically."""
    header: dict[str, Any] = {}
    chunks, place = [], 0
    for name, tensor in tensors.items():
        data = _bytes(tensor)
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + len(data)],
        }
        chunks.append(data)
        place += len(data)
    header["__metadata__"] = dict(metadata or {})
    header["__metadata__"] |= {CHECKSUM: _checksum(header, chunks)}
    text = _compact(header)
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for chunk in chunks:
            file.write(chunk)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, on the CPU, and the metadata. StoreError if the file is cut short or damaged."""
    try:
        return _read(path.read_bytes())
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
        raise StoreError(f"{path} is damaged: {error}.") from error


def _read(raw: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise ValueError("it is cut short")
    header, data = _header(raw[8 : 8 + length]), raw[8 + length :]
    metadata = header.get("__metadata__", {})
    if any(entry["data_offsets"][1] > len(data) for name, entry in header.items() if name != "__metadata__"):
        raise ValueError("it is cut short")
    checksum = metadata.pop(CHECKSUM, None)
    if checksum not in (None, _checksum(header, [data])):
        raise ValueError("its checksum is wrong")
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = TYPES[entry["dtype"]]
        if begin < 0 or end - begin != math.prod(entry["shape"]) * dtype.itemsize:
            raise ValueError(f"{name} is not as large as its shape says")
        if begin == end:
            tensors[name] = torch.empty(entry["shape"], dtype=dtype)
        else:
            tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(entry["shape"])
    return tensors, metadata


def _header(text: bytes) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError("its header cannot be read") from error


def _compact(header: Mapping[str, object]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def _checksum(header: Mapping[str, object], chunks: Iterable[bytes]) -> str:
    """Of the header, in which the checksum itself is not yet, and of all numbers."""
    return str(functools.reduce(lambda sofar, chunk: zlib.crc32(chunk, sofar), chunks, zlib.crc32(_compact(header))))


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
