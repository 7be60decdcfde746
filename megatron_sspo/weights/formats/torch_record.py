"""One tensor as `torch.save` writes it: a zip archive of a short pickle and the plain bytes.

`torch_dist` checkpoints are files full of such records. This module parses and builds records without the tensor: the
few hundred bytes before and after the tensor's bytes follow from dtype, shape and checksum.

The writer of torch.distributed.checkpoint (`FileSystemWriter`) could write such files, with a planner that streams the
tensors. But after a kill it starts from the beginning, and it reports no checksum of what it wrote, while its reader
takes a damaged byte for a weight (torch 2.13).
"""

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch._utils import _rebuild_tensor_v2

from megatron_sspo.errors import short_repr

_STORAGES = {
    torch.float64: "DoubleStorage",
    torch.float32: "FloatStorage",
    torch.float16: "HalfStorage",
    torch.bfloat16: "BFloat16Storage",
}
_DTYPES = {name: dtype for dtype, name in _STORAGES.items()}
_MAX_PICKLE_BYTES = 1 << 16  # of a record's pickle, which has some 200
_ALIGNMENT = 64  # of the bytes within a record, as torch.save aligns them
_ROOT = "archive"
_DATE = 0x21  # 1980-01-01, the first day of the zip format


@dataclass(frozen=True, slots=True)
class RecordTensor:
    """A record's tensor: its dtype and shape, and where in the file its bytes start.

    They are within the bytes of the tensor's storage, `storage_size` from `storage_offset` on, whose CRC-32 is `crc`.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    data_offset: int
    storage_offset: int
    storage_size: int
    crc: int

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class RecordFrame:
    """The bytes of a record before and after the tensor's. They depend on the tensor's values only by a checksum."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def head(self, crc: int) -> bytes:
        """Returns the bytes before; `crc` is the CRC-32 of the tensor's bytes. Their number does not depend on it."""
        return self._head(crc)[0]

    def tail(self, crc: int) -> bytes:
        """Returns the bytes after."""
        head, entries = self._head(crc)
        offset = len(head) + self.num_bytes
        version = _entry("version", b"3\n")
        entries.append((version, offset))
        directory = b"".join(entry.central(at) for entry, at in entries)
        start = offset + len(version.local()) + len(version.content)
        end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(entries), len(entries), len(directory), start, 0)
        return version.local() + version.content + directory + end

    def _head(self, crc: int) -> tuple[bytes, list[tuple["_Entry", int]]]:
        written, entries = b"", []
        for name, content in (("data.pkl", _pickled(self.dtype, self.shape)), ("byteorder", b"little")):
            entry = _entry(name, content)
            entries.append((entry, len(written)))
            written += entry.local() + entry.content
        bare = _Entry(f"{_ROOT}/data/0".encode(), crc, self.num_bytes, b"", b"")
        # an extra field has a header of four bytes
        padding = -(len(written) + len(bare.local()) + 4) % _ALIGNMENT
        data = _Entry(bare.name, crc, self.num_bytes, struct.pack("<HH", 0x4246, padding) + b"Z" * padding, b"")
        entries.append((data, len(written)))
        return written + data.local(), entries


@dataclass(frozen=True, slots=True)
class _Entry:
    """One file of a zip archive, stored without compression."""

    name: bytes
    crc: int
    size: int
    extra: bytes
    content: bytes

    def local(self) -> bytes:
        fields = (20, 0, 0, 0, _DATE, self.crc, self.size, self.size, len(self.name), len(self.extra))
        return struct.pack("<IHHHHHIIIHH", 0x04034B50, *fields) + self.name + self.extra

    def central(self, offset: int) -> bytes:
        fields = (20, 20, 0, 0, 0, _DATE, self.crc, self.size, self.size, len(self.name), 0, 0, 0, 0, 0, offset)
        return struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, *fields) + self.name


def _entry(name: str, content: bytes) -> _Entry:
    return _Entry(f"{_ROOT}/{name}".encode(), zlib.crc32(content), len(content), b"", content)


class _Storage:
    """Stands for the storage in a pickle."""


class _Tensor:
    """Stands for the tensor in a pickle."""


def _pickled(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Returns what torch.save pickles for a contiguous tensor with a storage of its own."""
    numel = torch.Size(shape).numel()
    storage = _Storage()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", getattr(torch, _STORAGES[dtype]), "0", "cpu", numel) if obj is storage else None

        def reducer_override(self, obj: Any) -> Any:
            if not isinstance(obj, _Tensor):
                return NotImplemented
            arguments = (storage, 0, tuple(shape), torch.empty(shape, device="meta").stride(), False, OrderedDict())
            return _rebuild_tensor_v2, arguments

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(_Tensor())
    return buffer.getvalue()


def locate(descriptor: int, offset: int, length: int) -> RecordTensor:
    """Parses the record at `offset` in a file.

    Raises:
        ValueError: it is not a record of one contiguous tensor of floating-point numbers.
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(_Window(descriptor, offset, length)) as archive:
            [pickled] = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
            if pickled.compress_type != zipfile.ZIP_STORED or pickled.file_size > _MAX_PICKLE_BYTES:
                raise ValueError(f"its data.pkl of {pickled.file_size:,} bytes is compressed or too large")
            found = _Unpickler(io.BytesIO(archive.read(pickled))).load()
            if not isinstance(found, _Rebuilt):
                raise ValueError("the record is not a tensor")
            strides = torch.empty(found.shape, device="meta").stride()
            data = archive.getinfo(pickled.filename.removesuffix("data.pkl") + f"data/{found.key}")
            place = os.pread(descriptor, 4, offset + data.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", place)
    except OSError:
        raise
    except Exception as error:  # a damaged archive or pickle may raise anything
        raise ValueError(f"there is no tensor at byte {offset} ({short_repr(error)})") from error
    if data.compress_type != zipfile.ZIP_STORED or found.strides != strides:
        raise ValueError(f"the tensor at byte {offset} is compressed or not contiguous")
    numel = torch.Size(found.shape).numel()
    if data.file_size < (found.start + numel) * found.dtype.itemsize:
        raise ValueError(f"the tensor at byte {offset} is cut off")
    start = offset + data.header_offset + 30 + name_length + extra_length
    data_offset = start + found.start * found.dtype.itemsize
    return RecordTensor(found.dtype, found.shape, data_offset, start, data.file_size, data.CRC)


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    dtype: torch.dtype
    key: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_HASHING = b"".join((pickle.SETITEM, pickle.SETITEMS, pickle.DICT, pickle.ADDITEMS, pickle.FROZENSET))  # opcodes


class _Unpickler(pickle._Unpickler):  # the one in C allocates a memo of any length that a pickle names
    """Reads a tensor's pickle, and refuses everything else that a pickle can contain.

    Nothing is put into a dictionary or a set: the hash of a tuple of tuples may take for ever.
    """

    dispatch: ClassVar = {code: load for code, load in pickle._Unpickler.dispatch.items() if code not in _HASHING}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return _no_hooks
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, _ = pid
        return dtype, key


def _no_hooks() -> "OrderedDict[str, Any]":
    """Returns a tensor's hooks, of which a checkpoint has none."""
    return OrderedDict()


def _rebuild(
    storage: tuple[torch.dtype, str], start: int, shape: Sequence[int], strides: Sequence[int], *_: Any
) -> _Rebuilt:
    dtype, key = storage
    if not (isinstance(dtype, torch.dtype) and isinstance(key, str) and type(start) is int and start >= 0):
        raise pickle.UnpicklingError(f"its storage {short_repr(storage)} starts at {short_repr(start)}")
    return _Rebuilt(dtype, key, start, tuple(shape), tuple(strides))


class _Window(io.RawIOBase):
    """A part of a file, seen as a file of its own."""

    def __init__(self, descriptor: int, offset: int, length: int) -> None:
        self._descriptor, self._offset, self._length, self._at = descriptor, offset, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise OSError("a seek before the start")  # as an ordinary file does; zipfile expects it
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._length - self._at, 0)
        data = os.pread(
            self._descriptor, left if size is None or size < 0 else min(size, left), self._offset + self._at
        )
        self._at += len(data)
        return data
