"""The location of tensors' bytes in files, and their reading into memory."""

import math
import os
import resource
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import open_descriptor
from megatron_sspo.weights.formats import torch_record

DEFAULT_THREADS = min(4, os.cpu_count() or 1)  # more threads do not read a disk faster
_CHECKED_BYTES = 1024**2  # read at a time; fits into a core's cache
_OPEN_FILES = 64  # per thread; a checkpoint of many ranks has more files than a process may open
_RECORDS = 64  # known to a thread


class Record(NamedTuple):
    """A torch.save record in a file."""

    offset: int
    length: int
    crc: int | None = None  # of its tensor's bytes, by another file than its own; None: no other file says it


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A rectangle of a tensor's bytes (rows × bytes of a row) that is contiguous in a file."""

    file: Path
    offset: int  # where the rectangle starts in the file, or in the data of a record
    row: int  # the rectangle in the tensor: first row, number of rows,
    num_rows: int
    column: int  # first byte and number of bytes within each of these rows
    width: int
    record: Record | None = None  # the record that the bytes are in

    def clipped(self, start: int, stop: int) -> "StoredPart | None":
        """Returns the part within the rows [start, stop), or None if there is none."""
        first, last = max(self.row, start), min(self.row + self.num_rows, stop)
        if first >= last:
            return None
        offset = self.offset + (first - self.row) * self.width
        return StoredPart(self.file, offset, first, last - first, self.column, self.width, self.record)

    def moved(self, rows: int) -> "StoredPart":
        """Returns the same bytes, placed `rows` further down in a tensor."""
        return StoredPart(self.file, self.offset, self.row + rows, self.num_rows, self.column, self.width, self.record)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor on disk, seen as rows of bytes: the first dimension are the rows, all others together are one row."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[StoredPart, ...]

    @property
    def num_rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @cached_property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensor, in order."""
        return list(dict.fromkeys(part.file for part in self.parts))


def files_per_thread(num_threads: int) -> int:
    """Returns how many files each of the threads that read a folder may keep open.

    All together they use a quarter of those that this process may still open, because two folders may be read at once.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _OPEN_FILES
    num_open = len(os.listdir("/dev/fd"))
    return max(1, min(_OPEN_FILES, (limit - num_open) // 4 // num_threads))


class _ThreadFiles:
    """The open files and the known records of one thread. The first entry is the first to be dropped."""

    def __init__(self) -> None:
        self.descriptors: OrderedDict[Path, int] = OrderedDict()
        # by (file, record's offset)
        self.records: OrderedDict[tuple[Path, int], torch_record.RecordTensor] = OrderedDict()


class Files:
    """The open files of each thread, of which the least recently used is closed first. Files are not memory-mapped.

    Args:
        check: whether to compare the bytes of each torch.save record with its CRC-32, when its first byte is read.

    Attributes:
        most_open: the number of files that a thread keeps open, at least one.
    """

    def __init__(self, *, check: bool = False) -> None:
        self.most_open = files_per_thread(DEFAULT_THREADS)
        self._check = check
        self._checked: set[tuple[Path, int]] = set()  # (file, record's offset)
        self._local = threading.local()
        self._all_threads: list[_ThreadFiles] = []

    def read(self, stored: StoredTensor, start: int, stop: int, into: np.ndarray) -> None:
        """Reads the rows [start, stop) of a tensor into bytes [stop − start, row_bytes].

        Raises:
            UserError: a file is missing or ends too early, or a record in it is not that of a tensor.
        """
        for part in stored.parts:
            found = part.clipped(start, stop)
            if found is not None:
                self._read_part(stored, found, into[found.row - start : found.row - start + found.num_rows])

    def _read_part(self, stored: StoredTensor, part: StoredPart, rows: np.ndarray) -> None:
        offset = part.offset
        if part.record is not None:
            record = self._record(stored, part.file, *part.record)
            if part.offset + part.num_rows * part.width > record.num_bytes:
                raise UserError(
                    f"{stored.name} in {part.file} has the shape {list(record.shape)}, smaller than the file .metadata "
                    "says; the checkpoint is damaged, get it again"
                )
            offset += record.data_offset
        if part.width == stored.row_bytes:
            self._fill(stored.name, part.file, offset, rows)
        else:
            piece = np.empty((part.num_rows, part.width), dtype=np.uint8)
            self._fill(stored.name, part.file, offset, piece)
            rows[:, part.column : part.column + part.width] = piece

    def _fill(self, name: str, file: Path, offset: int, into: np.ndarray) -> None:
        view = into.reshape(-1).data if into.size else memoryview(b"")
        try:
            descriptor = self._descriptor(file)
            while view:
                count = os.preadv(descriptor, [view], offset)
                if not count:
                    raise UserError(f"cannot read {name} from {file}: the file ends too early; get it again")
                view, offset = view[count:], offset + count
        except OSError as error:
            raise UserError(f"cannot read {name} from {file}: {error.strerror}") from error

    def _record(
        self, stored: StoredTensor, file: Path, offset: int, length: int, crc: int | None = None
    ) -> torch_record.RecordTensor:
        """Returns where the tensor of a record is. The last records of a thread are cached."""
        known = self._thread_files().records
        if (file, offset) not in known:
            try:
                record = torch_record.locate(self._descriptor(file), offset, length)
            except (OSError, ValueError) as error:
                raise UserError(
                    f"cannot read {stored.name} from {file}: {error}; it is damaged, get it again"
                ) from error
            if record.dtype != stored.dtype:
                raise UserError(
                    f"{stored.name} in {file} is {record.dtype}, and {stored.dtype} in the file .metadata; it is "
                    "damaged, get it again"
                )
            if crc not in (None, record.crc):
                raise UserError(
                    f"{stored.name} in {file} is not what was written there: its CRC-32 is not that in manifest.json; "
                    "get the checkpoint again"
                )
            if self._check and (file, offset) not in self._checked:
                self._check_content(stored.name, file, record)
                self._checked.add((file, offset))
            known[file, offset] = record
            if len(known) > _RECORDS:
                known.popitem(last=False)
        return known[file, offset]

    def _check_content(self, name: str, file: Path, record: torch_record.RecordTensor) -> None:
        from isal.isal_zlib import crc32  # the client of SGLang's servers does without it

        crc, end = 0, record.storage_offset + record.storage_size
        for start in range(record.storage_offset, end, _CHECKED_BYTES):
            block = np.empty(min(_CHECKED_BYTES, end - start), dtype=np.uint8)
            self._fill(name, file, start, block)
            crc = crc32(block.data, crc)
        if crc != record.crc:
            raise UserError(f"{name} in {file} is damaged: its bytes do not have the CRC-32 beside them; get it again")

    def _descriptor(self, file: Path) -> int:
        opened = self._thread_files().descriptors
        if file in opened:
            opened.move_to_end(file)
        else:
            while len(opened) >= self.most_open:
                os.close(opened.popitem(last=False)[1])
            opened[file] = open_descriptor(file)
        return opened[file]

    def _thread_files(self) -> _ThreadFiles:
        if not hasattr(self._local, "files"):
            self._local.files = _ThreadFiles()
            self._all_threads.append(self._local.files)
        return self._local.files

    def close(self) -> None:
        """Closes the files of all threads; no thread may be reading. A later read opens them again."""
        for opened in self._all_threads:
            for descriptor in opened.descriptors.values():
                os.close(descriptor)
            opened.descriptors.clear()
            opened.records.clear()
