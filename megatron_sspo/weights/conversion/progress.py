"""The progress of a conversion: bytes per second and time left."""

import sys
import threading
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from megatron_sspo.files import manifest
from megatron_sspo.weights.family import size
from megatron_sspo.weights.formats.model_folder import ModelFolder

_SECONDS = 10  # between two lines if stderr is not a terminal


class Meter:
    """A progress bar on stderr if it is a terminal, otherwise a line every few seconds. Threads may share it."""

    def __init__(self, title: str) -> None:
        self._title, self._done = title, 0
        self._lock = threading.Lock()
        self._bar: Progress | None = None

    def start(self, total: int) -> None:
        """Starts the display of `total` bytes."""
        self._total, self._start_time, self._printed = total, time.monotonic(), time.monotonic()
        print(f"{self._title}: {total / 1e9:.2f} GB", file=sys.stderr, flush=True)
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console)
            self._bar.add_task("", total=total)
            self._bar.start()

    def advance(self, num_bytes: int) -> None:
        """Adds `num_bytes` to the bytes that are done."""
        with self._lock:
            self._done += num_bytes
            now = time.monotonic()
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done)
            elif now - self._printed >= _SECONDS:
                self._printed = now
                rate = self._done / (now - self._start_time)
                left = (self._total - self._done) / max(rate, 1)
                print(
                    f"{self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB, {rate / 1e9:.2f} GB/s, {left:.0f} s left",
                    file=sys.stderr,
                    flush=True,
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def check_content(folder: ModelFolder) -> None:
    """Compares the files of tensors with the checksums of the run's checkpoint that they are in, if they are.

    The files are read as a whole.

    Raises:
        UserError: the content of a file is not what was written.
    """
    if (found := folder.manifest_to_check()) is None:
        return
    checkpoint, written = found
    with Meter(f"{checkpoint} and its manifest") as meter:
        meter.start(sum(entry.size for entry in written.files.values()))
        manifest.check_content(checkpoint, written, advance=meter.advance)


def print_padding(folder: ModelFolder) -> None:
    """Says how many rows of the vocabulary are left out, if any are."""
    if found := folder.num_padding_rows:
        vocab_size = size(folder.config, "vocab_size")
        print(
            f"{folder.path}: the last {found:,} of {vocab_size + found:,} rows of the vocabulary are left out, as "
            f"padding (vocab_size of config.json is {vocab_size:,})",
            file=sys.stderr,
            flush=True,
        )
