"""Copies tensors from files into files by several threads, with only a few blocks in memory."""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from isal.isal_zlib import crc32

from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.journal import ConversionProgress, Journal
from megatron_sspo.weights.formats.stored import Files, StoredTensor, files_per_thread
from megatron_sspo.weights.formats.torch_record import RecordFrame

BLOCK_BYTES = 1024**2  # read, checksummed and written at a time; fits into a core's cache
_STEP_BYTES = 8 * 1024**2  # copied between two journal lines of one tensor


@dataclass(frozen=True, slots=True)
class Source:
    """The rows [start, stop) of a tensor."""

    stored: StoredTensor
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor to be written: the rows of its sources, concatenated."""

    name: str
    sources: tuple[Source, ...]
    dtype: torch.dtype
    file: str  # name in the destination folder
    offset: int  # of the tensor's bytes in this file
    frame: RecordFrame | None = None  # the bytes to write before and after the tensor's

    @property
    def num_rows(self) -> int:
        return sum(source.stop - source.start for source in self.sources)

    @property
    def row_bytes(self) -> int:
        stored = self.sources[0].stored
        return stored.row_bytes // stored.dtype.itemsize * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes


class TensorCopier:
    """Writes the targets into the files of a folder, and keeps a journal of it.

    Args:
        folder: the folder of the files; they may exist from an earlier attempt.
        targets: the tensors to write.
        files: (name, size in bytes) of every file.
        journal: the path of the journal.
        advance: called with the number of bytes of every block that was written.
    """

    def __init__(
        self,
        folder: Path,
        targets: Sequence[Target],
        files: Sequence[tuple[str, int]],
        journal: Path,
        advance: Callable[[int], None],
    ) -> None:
        self._targets, self._advance = targets, advance
        self._paths = {name: folder / name for name, _ in files}
        self._descriptors: dict[str, int] = {}
        # the kernel lets only one thread at a time write to a file, and the others would wait in a busy loop
        self._locks = {name: threading.Lock() for name, _ in files}
        self._new: set[str] = set()  # files that are not what an earlier attempt left, so its steps do not count
        for name, num_bytes in files:
            descriptor = self._descriptors[name] = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)
            if os.fstat(descriptor).st_size != num_bytes:
                self._new.add(name)
                os.truncate(descriptor, num_bytes)
        self._journal = Journal(journal, self._flush, is_valid=self._is_valid)
        self._files = Files(check=True)
        self._stop = threading.Event()

    @property
    def bytes_done(self) -> int:
        """The number of bytes that earlier attempts copied."""
        return sum(p.rows * self._targets[number].row_bytes for number, p in self._journal.done.items())

    def run(self, num_threads: int) -> list[int]:
        """Copies the remaining tensors and flushes them to disk. Returns the CRC-32 of every target's bytes."""
        self._files.most_open = files_per_thread(num_threads)
        done = [self._journal.done.get(number, ConversionProgress()) for number in range(len(self._targets))]
        work = _WorkQueue((target.file, i) for i, target in enumerate(self._targets) if not done[i].finished)

        def copy() -> None:
            file = None
            while not self._stop.is_set() and (taken := work.take(file)) is not None:
                file, number = taken
                done[number] = self._copy(number, done[number])

        with ThreadPoolExecutor(num_threads) as pool:
            futures = [pool.submit(copy) for _ in range(num_threads)]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except BaseException:
                self._stop.set()
                raise
        self._journal.close()  # flushes the rest
        return [progress.crc for progress in done]

    def _is_valid(self, number: int, progress: ConversionProgress) -> bool:
        """Returns whether a step in the journal of an earlier attempt is one of this conversion."""
        if not 0 <= number < len(self._targets) or self._targets[number].file in self._new:
            return False
        num_rows = self._targets[number].num_rows
        return progress.rows == num_rows if progress.finished else 0 <= progress.rows < num_rows

    def _flush(self) -> None:
        for descriptor in self._descriptors.values():
            os.fsync(descriptor)

    def write(self, file: str, offset: int, data: bytes | memoryview) -> None:
        """Writes bytes into one of the files."""
        view = memoryview(data).cast("B")
        try:
            with self._locks[file]:
                while view:
                    count = os.pwrite(self._descriptors[file], view, offset)
                    view, offset = view[count:], offset + count
        except OSError as error:
            raise UserError(
                f"cannot write {self._paths[file]}: {error.strerror}; finished work is kept, run the same command again"
            ) from error

    def close(self) -> None:
        """Closes all files, including those of the sources."""
        self._journal.close()
        self._files.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def _copy(self, number: int, progress: ConversionProgress) -> ConversionProgress:
        target = self._targets[number]
        row, crc, noted = progress.rows, progress.crc, progress.rows
        num_rows = max(1, BLOCK_BYTES // max(target.row_bytes, *(each.stored.row_bytes for each in target.sources)))
        buffer = np.empty((min(num_rows, target.num_rows), target.row_bytes), dtype=np.uint8)
        while row < target.num_rows and not self._stop.is_set():
            block = buffer[: target.num_rows - row]
            self._read(target, row, block)
            crc = crc32(block.data, crc)
            self.write(target.file, target.offset + row * target.row_bytes, block.data)
            row += len(block)
            if (row - noted) * target.row_bytes >= _STEP_BYTES and row < target.num_rows:
                self._journal.note(number, ConversionProgress(row, crc), (row - noted) * target.row_bytes)
                noted = row
            self._advance(len(block) * target.row_bytes)
        if row < target.num_rows:
            return ConversionProgress(row, crc)  # another thread has failed, and `run` raises its error
        if target.frame is not None:
            head = target.frame.head(crc)
            self.write(target.file, target.offset - len(head), head)
            self.write(target.file, target.offset + target.num_bytes, target.frame.tail(crc))
        finished = ConversionProgress(row, crc, finished=True)
        self._journal.note(number, finished, (row - noted) * target.row_bytes)
        return finished

    def _read(self, target: Target, start: int, block: np.ndarray) -> None:
        """Reads a target's rows from `start` on into `block`, as bytes of the target's dtype."""
        stop, first = start + len(block), 0
        for source in target.sources:
            last = first + source.stop - source.start
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                shift, stored, rows = source.start - first, source.stored, block[begin - start : end - start]
                if stored.dtype == target.dtype:
                    self._files.read(stored, begin + shift, end + shift, rows)
                else:
                    original = np.empty((end - begin, stored.row_bytes), dtype=np.uint8)
                    self._files.read(stored, begin + shift, end + shift, original)
                    _cast(stored, _view(original, stored.dtype), _view(rows, target.dtype))
            first = last


class _WorkQueue:
    """The tensors left to write, handed out file by file because threads that write to one file wait for each other."""

    def __init__(self, items: Iterable[tuple[str, int]]) -> None:
        self._left: dict[str, deque[int]] = {}
        for file, number in items:
            self._left.setdefault(file, deque()).append(number)
        self._workers = Counter[str]()
        self._lock = threading.Lock()

    def take(self, file: str | None) -> tuple[str, int] | None:
        """Returns the next (file, number) for a thread that works on `file`, or None if nothing is left."""
        with self._lock:
            if file not in self._left:  # it is done: take the file with the fewest workers, then the most tensors left
                if not self._left:
                    return None
                file = min(self._left, key=lambda name: (self._workers[name], -len(self._left[name])))
                self._workers[file] += 1
            number = self._left[file].popleft()
            if not self._left[file]:
                del self._left[file]
            return file, number


def _cast(stored: StoredTensor, values: torch.Tensor, into: torch.Tensor) -> None:
    """Casts values to the dtype of `into`; a finite value that would become infinite is an error."""
    into.copy_(values)
    if into.isinf().any() and (into.isinf() & values.isfinite()).any():
        kind = str(into.dtype).removeprefix("torch.")
        raise UserError(
            f"{stored.name} of {stored.files[0]} has values beyond {torch.finfo(into.dtype).max:.4g}, the largest of "
            f"{kind}; choose another --dtype, or leave it out"
        )


def _view(block: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Returns the bytes of contiguous rows as a flat tensor that shares their memory."""
    return torch.from_numpy(block.reshape(-1)).view(dtype)
