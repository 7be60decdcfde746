"""A snapshot of a GPU's memory when it is exhausted: the allocations, with the lines that made them."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from megatron_sspo.files.writing import replacing

FOLDER = "memory"  # in the run's folder
_EVENTS = 100_000  # the newest allocations and releases that are kept


@contextmanager
def snapshot_on_out_of_memory(device: torch.device, folder: Path, rank: int) -> Iterator[None]:
    """A context manager that writes a snapshot into a run's folder if torch's allocator finds no memory on a GPU.

    The traceback of the error then names the file. On a CPU nothing is recorded: the kernel kills the process there.
    """
    if device.type != "cuda":
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=_EVENTS, stacks="python")
    try:
        yield
    except torch.OutOfMemoryError as error:
        path = folder / FOLDER / f"rank-{rank}.pickle"
        with contextlib.suppress(OSError):  # a full disk must not hide the error
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                torch.cuda.memory._dump_snapshot(str(temporary))
            error.add_note(f"a snapshot of the memory is in {path}: https://docs.pytorch.org/memory_viz shows it")
        raise
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
