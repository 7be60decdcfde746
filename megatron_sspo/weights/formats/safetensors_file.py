"""One safetensors file: its header, and the rows of its tensors."""

import errno
import io
import json
import math
import os
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatron_sspo.errors import UserError

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
_BLOCK = 512 * 1024  # bytes
_LFS_POINTER = b"version "  # the first 8 bytes of the text that Git has in place of a large file


class _LastFile(threading.local):
    """The file that a thread has read last, which stays open for its next read."""

    path: Path | None = None
    file: BinaryIO


class Files:
    """Reads tensors. Each thread keeps one file open."""

    def __init__(self) -> None:
        self._last = _LastFile()

    def read(self, tensor: "StoredTensor", start: int, stop: int) -> Tensor:
        """Returns rows [start, stop) of a tensor. Raises UserError if the file cannot be read, or ends too early."""
        rows = torch.empty((stop - start, *tensor.shape[1:]) if tensor.shape else (), dtype=tensor.dtype)
        try:
            if self._last.path != tensor.file:
                self.close()
                self._last.file, self._last.path = tensor.file.open("rb"), tensor.file
            self._last.file.seek(tensor.offset + start * math.prod(tensor.shape[1:]) * tensor.dtype.itemsize)
            count = cast(Any, self._last.file).readinto(bytes_of(rows)) if rows.numel() else 0
            if count < rows.nbytes:
                raise OSError(errno.EIO, "the file ends too early; get it again")
        except OSError as error:
            raise UserError(f"cannot read {tensor.name} from {tensor.file}: {error.strerror}") from error
        return rows

    def close(self) -> None:
        """Closes the file of this thread. A later read opens it again."""
        if self._last.path is not None:
            self._last.file.close()
            self._last.path = None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, whose bytes begin at `offset`; its first dimension are its rows."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    file: Path
    offset: int

    def part(self, name: str, number: int, shape: tuple[int, ...]) -> "StoredTensor":
        """Returns the `number`-th of the tensors of this shape that follow each other in this one."""
        offset = self.offset + number * math.prod(shape) * self.dtype.itemsize
        return replace(self, name=name, shape=shape, offset=offset)


class _Blocks(io.FileIO):
    def write(self, data: Any) -> int:
        return super().write(memoryview(data).cast("B")[:_BLOCK])  # the buffer above calls again with the rest


class BlockWriter(io.BufferedWriter):
    """Writes a new file in blocks: Linux takes twice as long for a write of many megabytes as for its parts."""

    def __init__(self, path: str | os.PathLike) -> None:
        super().__init__(_Blocks(path, "w"))


def bytes_of(rows: Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor, which share its memory."""
    return rows.view(-1).view(torch.uint8).numpy().data


def read_header(path: Path) -> list[StoredTensor]:
    """Returns the tensors of a file.

    Raises UserError if the file cannot be read, is truncated, or has a dtype that is not supported.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if start == _LFS_POINTER:
                raise UserError(
                    f"{path} is a pointer of Git LFS, without the tensors; get the file with `git lfs pull`"
                )
            with safe_open(path, framework="pt"):  # compares the header with the size of the file
                [length] = struct.unpack("<Q", start)
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return [
            StoredTensor(
                name, tuple(entry["shape"]), _DTYPES[entry["dtype"]], path, 8 + length + entry["data_offsets"][0]
            )
            for name, entry in header.items()
        ]
    except (OSError, struct.error, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read {path}: {reason}; it is truncated or damaged, get it again") from error
    except KeyError as error:
        raise UserError(f"{path} has tensors of the dtype {error}; save the model in bfloat16") from error


def make_header(tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> bytes:
    """Returns the header of a file that holds tensors of these shapes and dtypes, one after the other."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, dtype) in tensors.items():
        end = at + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    return struct.pack("<Q", len(text)) + text
