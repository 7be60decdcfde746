"""The progress of a conversion: bytes per second and time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from megatron_sspo.files import manifest
from megatron_sspo.weights.family import size
from megatron_sspo.weights.formats.model_folder import ModelFolder


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], object]]:
    """Shows the progress of `total` bytes on stderr; yields the function to call with each number of bytes done.

    Threads may share it. If stderr is not a terminal, there is one line at the end.
    """
    print(f"{title}: {total / 1e9:.2f} GB", file=sys.stderr, flush=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda num_bytes: bar.advance(task, num_bytes)


def check_content(folder: ModelFolder) -> None:
    """Compares the tensors' files, as a whole, with the checksums of the run's checkpoint, if they are in one.

    Raises UserError if the content of a file is not what was written.
    """
    if folder.run_manifest is None:
        return
    checkpoint, written = folder.run_manifest
    total = sum(entry.size for entry in written.files.values())
    with progress_bar(f"{checkpoint} and its manifest", total) as advance:
        manifest.check_content(checkpoint, written, advance=advance)


def print_left_out(folder: ModelFolder) -> None:
    """Says which tensors, and how many rows of the vocabulary, are left out, if any are."""
    if line := folder.describe_left_out():
        print(line, file=sys.stderr, flush=True)
    if found := folder.num_padding_rows:
        vocab_size = size(folder.config, "vocab_size")
        print(
            f"{folder.path}: the last {found:,} of {vocab_size + found:,} rows of the vocabulary are left out, as "
            f"padding (vocab_size of config.json is {vocab_size:,})",
            file=sys.stderr,
            flush=True,
        )
