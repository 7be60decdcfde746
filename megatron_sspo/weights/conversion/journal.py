"""A journal on disk of what a long copy has done, so that a killed copy can be continued."""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megatron_sspo.files.reading import read_bytes
from megatron_sspo.processes.surroundings import boot_id

_LOST = "lost"  # in place of a boot's id: of the steps, only those that were flushed count


@dataclass(frozen=True, slots=True)
class ConversionProgress:
    """The progress of one tensor."""

    rows: int = 0
    crc: int = 0  # CRC-32 of the bytes of these rows
    finished: bool = False


class Journal:
    """A file with one line per step, and a thread that flushes the copied bytes to disk.

    A step is noted when its bytes have been written to the operating system. A kill of the process does not lose them,
    but a crash of the machine may. So steps noted before a reboot count only if they were also flushed to disk.

    Args:
        path: the file; its existing content is read.
        flush: returns when all written bytes are on disk.
        is_valid: whether a step that was read can be continued; that of another tensor, or in a file that is gone,
            cannot.
        every: the number of bytes between two flushes.
    """

    def __init__(
        self,
        path: Path,
        flush: Callable[[], None],
        *,
        is_valid: Callable[[int, ConversionProgress], bool] = lambda number, progress: True,
        every: int = 512 * 1024**2,
    ) -> None:
        self._flush, self._every = flush, every
        self._boot = boot_id()
        self.done = {number: progress for number, progress in self._read(path).items() if is_valid(number, progress)}
        self._changed = threading.Condition()
        self._unflushed, self._closed = 0, False
        self._error: OSError | None = None  # of the thread
        # the file is rewritten, so that steps dropped now are not read again later
        temporary = path.with_name(f"{path.name}.new")
        self._file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        self._steps = 0
        self._write({"boot": self._boot})
        for number, progress in self.done.items():
            self._note(number, progress)
        os.fsync(self._file)
        temporary.rename(path)
        self._thread = threading.Thread(target=self._flush_loop, daemon=True)
        self._thread.start()

    def _read(self, path: Path) -> dict[int, ConversionProgress]:
        """Returns the last step of every tensor; after a reboot, the last one before a flush."""
        steps: list[tuple[int, ConversionProgress]] = []
        boot, flushed = self._boot, 0
        for line in read_bytes(path).splitlines() if os.path.lexists(path) else ():
            try:
                entry = json.loads(line)
                if "boot" in entry:
                    boot = entry["boot"]
                elif "flushed" in entry:
                    flushed = int(entry["flushed"])
                else:
                    number, rows, crc = (int(entry[name]) for name in ("tensor", "rows", "crc"))
                    steps.append((number, ConversionProgress(rows, crc, bool(entry["finished"]))))
            except (ValueError, LookupError, TypeError, RecursionError):
                break  # cut by a kill or damaged by a crash: this step and all later ones are repeated
        return dict(steps if boot == self._boot else steps[:flushed])

    def note(self, number: int, progress: ConversionProgress, num_bytes: int) -> None:
        """Notes that tensor `number` is at `progress`, after `num_bytes` more were copied."""
        with self._changed:
            self._note(number, progress)
            self._unflushed += num_bytes
            if self._unflushed >= self._every:
                self._changed.notify()

    def close(self) -> None:
        """Flushes the remaining bytes and closes the file. It may be called more than once.

        Raises:
            OSError: bytes could not be flushed, now or earlier: a shared disk that is full says so only then.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        self._thread.join()
        os.close(self._file)
        if self._error is not None:
            raise self._error

    def _flush_loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._unflushed >= self._every)
                closed, steps, self._unflushed = self._closed, self._steps, 0
            try:
                self._flush()
                self._write({"flushed": steps})
            except OSError as error:
                self._error = error
                with contextlib.suppress(OSError):
                    self._write({"boot": _LOST})  # the system may have dropped what it could not write
                return
            if closed:
                return

    def _note(self, number: int, progress: ConversionProgress) -> None:
        self._write({"tensor": number, "rows": progress.rows, "crc": progress.crc, "finished": progress.finished})
        self._steps += 1

    def _write(self, entry: dict[str, object]) -> None:
        os.write(self._file, (json.dumps(entry) + "\n").encode())
