"""The header of a safetensors file: its tensors and where they are."""

import json
import os
import struct
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import torch

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.files.reading import open_file, parse_json
from megatron_sspo.weights.formats.stored import StoredPart, StoredTensor

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
_LFS_POINTER = b"version "  # the first 8 bytes of the text that Git has in place of a large file
_MAX_HEADER_BYTES = 100_000_000  # bytes; the limit of the format
_MAX_DIMENSIONS = 64  # as in NumPy


def has_safetensors(folder: Path) -> bool:
    """Returns whether a folder has a safetensors file, or the index of some."""
    return any(folder.glob("*.safetensors*"))


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns name -> tensor, for every tensor of a file.

    Raises:
        UserError: the file cannot be read, is truncated, or its header contradicts itself.
    """
    try:
        with open_file(path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes < 8:
                raise ValueError(f"it has {num_bytes} bytes, and no header")
            start = file.read(8)
            if start == _LFS_POINTER:
                raise UserError(
                    f"{path} is a pointer of Git LFS, without the tensors; get the file with `git lfs pull`"
                )
            [length] = struct.unpack("<Q", start)
            if length > min(_MAX_HEADER_BYTES, num_bytes - 8):
                raise ValueError(f"its header of {length:,} bytes does not fit into its {num_bytes:,}")
            header = parse_json(file.read(length).decode("utf-8"))
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        header.pop("__metadata__", None)
        found = {name: _parse_entry(path, name, entry, 8 + length) for name, entry in header.items()}
        _check_extents(found, 8 + length, num_bytes)
    except (OSError, ValueError, struct.error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read {path}: {reason}; it is truncated or damaged, get it again") from error
    return found


def _parse_entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    if not name.isprintable():
        raise ValueError(f"the name {short_repr(name)} of a tensor has characters that cannot be printed")
    if not isinstance(entry, dict):
        raise ValueError(f"its entry of {name} is {short_repr(entry)}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise ValueError(f"the dtype of {name} is {short_repr(dtype)}")
    if dtype not in _DTYPES:
        raise UserError(
            f"{name} of {path} has dtype {short_repr(dtype)[1:-1]}, which is not supported; save the model in bfloat16"
        )
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:  # the product of a million sizes takes hours
        raise ValueError(f"the shape of {name} is {short_repr(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"the data_offsets of {name} are {short_repr(offsets)}")
    begin, end = offsets
    stored = StoredTensor(name, tuple(shape), _DTYPES[dtype], ())
    if end - begin != stored.num_bytes:
        raise ValueError(f"{name} has {end - begin:,} bytes and its shape needs {stored.num_bytes:,}")
    part = StoredPart(path, start + begin, 0, stored.num_rows, 0, stored.row_bytes)
    return StoredTensor(name, stored.shape, stored.dtype, (part,))


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check_extents(tensors: dict[str, StoredTensor], start: int, num_bytes: int) -> None:
    """Checks that the tensors follow each other without a gap up to the end of the file."""
    extents = sorted((t.parts[0].offset, t.parts[0].offset + t.num_bytes, t.name) for t in tensors.values())
    for (_, end, name), (begin, _, other) in pairwise([(0, start, "the header"), *extents]):
        if begin != end:
            raise ValueError(f"{other} does not start where {name} ends")
    last, name = (extents[-1][1], extents[-1][2]) if extents else (start, "the header")
    if last != num_bytes:
        raise ValueError(f"it has {num_bytes:,} bytes, and {name} ends at {last:,}")


def make_header(tensors: Iterable[StoredTensor]) -> tuple[bytes, list[int]]:
    """Returns the header of a file that holds these tensors in this order, and the offset of each in the file."""
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
