"""The header of a safetensors file: what tensors it holds, and where."""

import json
import struct
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.weights.stored import Part, Stored

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000  # bytes; the limit of the format


def read_header(path: Path) -> dict[str, Stored]:
    """Name -> tensor, of every tensor of a file.

    Raises:
        UserError: the file cannot be read, is truncated, or its header contradicts itself.
    """
    try:
        with path.open("rb") as file:
            num_bytes = path.stat().st_size
            [length] = struct.unpack("<Q", file.read(8))
            if length > min(_LARGEST_HEADER, num_bytes - 8):
                raise ValueError(f"its header of {length:,} bytes does not fit into its {num_bytes:,}")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {name: _stored(path, name, entry, 8 + length) for name, entry in header.items()}
        _check_extents(found, 8 + length, num_bytes)
    except (OSError, ValueError, struct.error, LookupError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read {path}: {reason}; it is truncated or damaged, get it again") from error
    return found


def _stored(path: Path, name: str, entry: dict[str, Any], start: int) -> Stored:
    if entry["dtype"] not in _DTYPES:
        raise UserError(f"{name} of {path} has dtype {entry['dtype']}, which is not supported")
    begin, end = entry["data_offsets"]
    stored = Stored(name, tuple(entry["shape"]), _DTYPES[entry["dtype"]], ())
    if end - begin != stored.num_bytes:
        raise ValueError(f"{name} has {end - begin:,} bytes and its shape makes {stored.num_bytes:,}")
    part = Part(path, start + begin, 0, stored.num_rows, 0, stored.row_bytes)
    return Stored(name, stored.shape, stored.dtype, (part,))


def _check_extents(tensors: dict[str, Stored], start: int, num_bytes: int) -> None:
    """Tensors follow each other without a gap up to the end of the file."""
    extents = sorted((t.parts[0].offset, t.parts[0].offset + t.num_bytes, t.name) for t in tensors.values())
    for (_, end, name), (begin, _, other) in pairwise([(0, start, "the header"), *extents]):
        if begin != end:
            raise ValueError(f"{other} does not start where {name} ends")
    last, name = (extents[-1][1], extents[-1][2]) if extents else (start, "the header")
    if last != num_bytes:
        raise ValueError(f"it has {num_bytes:,} bytes, and {name} ends at {last:,}")


def make_header(tensors: Iterable[Stored]) -> tuple[bytes, list[int]]:
    """The header of a file that is to hold these tensors in this order, and the offset of each in the file."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offsets, at = [], 0
    for tensor in tensors:
        extent = [at, at + tensor.num_bytes]
        entries[tensor.name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": extent}
        offsets.append(at)
        at += tensor.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    return struct.pack("<Q", len(text)) + text, [8 + len(text) + offset for offset in offsets]
