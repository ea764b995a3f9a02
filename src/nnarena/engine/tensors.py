"""Tensors in files, without pickles: the safetensors format.

Eight bytes with the length of a header, the header (JSON: name → type, shape, place), then the numbers. Written here
in a few lines so that the engine needs torch and numpy alone; any safetensors reader opens the files. The header's
metadata carries a checksum of the numbers, so that a damaged file is told from a whole one.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

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
    header: dict[str, object] = {}
    chunks, place, checksum = [], 0, 0
    for name, tensor in tensors.items():
        data = _bytes(tensor)
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + len(data)],
        }
        chunks.append(data)
        place += len(data)
        checksum = zlib.crc32(data, checksum)
    header["__metadata__"] = {**(metadata or {}), CHECKSUM: str(checksum)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for chunk in chunks:
            file.write(chunk)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, on the CPU, and the metadata. StoreError if the file is cut short or damaged."""
    try:
        return _read(path.read_bytes())
    except (ValueError, KeyError, TypeError, struct.error, RuntimeError) as error:
        raise StoreError(f"{path} is damaged: {error}.") from error


def _read(raw: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = raw[8 + length :]
    if CHECKSUM in metadata and str(zlib.crc32(data)) != metadata.pop(CHECKSUM):
        raise ValueError("the checksum of its numbers is wrong")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if end > len(data):
            raise ValueError("it is cut short")
        dtype = TYPES[entry["dtype"]]
        if begin == end:
            tensors[name] = torch.empty(entry["shape"], dtype=dtype)
        else:
            tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(entry["shape"])
    return tensors, metadata


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
