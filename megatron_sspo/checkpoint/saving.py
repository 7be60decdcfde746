"""Saves checkpoints in the background, by a thread."""

import inspect
import math
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from megatron_sspo.errors import UserError, first_line
from megatron_sspo.files.manifest import Entry, checksums_of_rank
from megatron_sspo.processes import agree
from megatron_sspo.processes.hang import mark_progress

_STALLED_SECONDS = 600.0  # without a tensor written, after which the disk counts as hung
_POLL_SECONDS = 0.05
# without its decorator, which switches off this process's garbage collection
_write_file: Any = inspect.unwrap(FileSystemWriterAsync.write_preloaded_data)


class AsyncSave:
    """A save in progress. It writes the state at the time of its creation, even if the model changes meanwhile.

    Megatron-Core plans it and writes each file; Megatron's queue of saves, which needs CUDA, is not used, and neither
    are its processes: 0.16 forks them from a process with threads, and later releases write by threads, as here.

    Args:
        request: the request that `dist_checkpointing.save` returned.
        is_copied: returns whether the tensor of a name is a copy already, which nothing changes.
    """

    def __init__(self, request: Any, path: Path, is_copied: Callable[[str], bool]) -> None:
        self._request, self._path, self._rank = request, path, dist.get_rank()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._is_cancelled, self._advanced_at = False, time.monotonic()
        self._checksums: Future[dict[str, Entry]] = Future()
        if request.async_fn is None:  # this rank has nothing to write
            self._checksums.set_result({})
            return
        _, buckets, results = request.async_fn_args
        files = [(file, key, (objects, _copied(tensors, is_copied))) for file, key, (objects, tensors) in buckets]
        self._checksums = self._thread.submit(self._write, request.async_fn.args[0], files, results)

    def is_done(self) -> bool:
        """Returns whether every rank has written its part, so that the checkpoint is complete. A collective.

        Raises:
            UserError: a part could not be written, or the disk hangs.
        """
        if not all(agree.all_gather_objects(self._is_ready())):
            return False
        self._finish()
        return True

    def wait(self) -> None:
        """Waits until the checkpoint is complete. A collective, which raises the errors of `is_done`."""
        while not self._is_ready():
            mark_progress()  # a disk on which nothing is written ends the wait
            time.sleep(_POLL_SECONDS)
        agree.barrier()
        self._finish()

    def checksums(self) -> dict[str, Entry]:
        """Returns the checksums of the tensors that this rank has written, after `is_done` was true or after `wait`."""
        return self._checksums.result()

    def cancel(self) -> None:
        """Stops writing a checkpoint that is not needed any more. Not a collective."""
        self._is_cancelled = True
        self._thread.shutdown(wait=False)

    def _write(self, transforms: Any, files: list[Any], results: Any) -> dict[str, Entry]:
        """Writes the files, tells Megatron what was written or the error, and reads the files for checksums."""
        written: dict[int, Any] = {}
        try:
            for number, (file, key, (objects, tensors)) in enumerate(files):
                told, count = queue.SimpleQueue[tuple[int, Any]](), queue.Queue[int]()
                count.put(number)  # Megatron's function takes it when it is done
                bucket = (file, key, (objects, self._advancing(tensors)))
                options = {"local_proc_idx": number, "write_bucket": bucket, "use_fsync": True}
                _write_file(transforms, **options, results_queue=told, count_queue=count)
                _, written[number] = told.get_nowait()
                if isinstance(written[number], Exception):
                    raise written[number]
            self._advanced_at = math.inf
            checksums = checksums_of_rank(self._rank, self._path)
        except Exception as error:
            results.put(error)
            return {}
        results.put(written)
        return checksums

    def _advancing(self, tensors: Iterable[Any]) -> Iterator[Any]:
        for each in tensors:
            if self._is_cancelled:
                raise RuntimeError("it was cancelled")
            self._advanced_at = time.monotonic()
            yield each

    def _is_ready(self) -> bool:
        if not self._checksums.done() and time.monotonic() - self._advanced_at > _STALLED_SECONDS:
            raise UserError(
                f"the checkpoint {self._path} has not grown for {_STALLED_SECONDS:.0f} s: check the disk, and resume "
                "from the previous checkpoint"
            )
        return self._checksums.done()

    def _finish(self) -> None:
        self._thread.shutdown()
        with report_save_errors(self._path):
            for finalize in self._request.finalize_fns:
                finalize()


def _copied(tensors: Iterable[tuple[Any, Tensor]], is_copied: Callable[[str], bool]) -> list[tuple[Any, Tensor]]:
    """Returns copies on the host of the tensors that training changes."""
    return [
        (item, tensor if tensor.is_cpu and is_copied(item.index.fqn) else tensor.to("cpu", copy=True))
        for item, tensor in tensors
    ]


@contextmanager
def report_save_errors(path: Path) -> Iterator[None]:
    """Turns an error of Megatron or torch, on all ranks, into a UserError of one sentence about checkpoint `path`."""
    try:
        yield
    except (Exception, CheckpointException) as error:  # CheckpointException is a BaseException
        if agree.is_broken_connection(error):
            raise
        raise UserError(
            f"the checkpoint {path} could not be written ({describe_error(error)}): check the disk, and resume from "
            "the previous checkpoint"
        ) from error


def describe_error(error: BaseException) -> str:
    """Returns the cause of an error in one line; for torch's `CheckpointException` that of the first failed rank."""
    if isinstance(error, CheckpointException):
        for rank, (failure, _) in error.failures.items():
            return f"on rank {rank}: {describe_error(failure)}"
        return "on another rank"
    if "weights_only" in str(error):  # torch advises to load without this protection, which would run the file's code
        return "a file of it is not one of tensors, or has objects that could run code, so it was not loaded"
    # torch's zip writer and the stream below it do not say why the system refused
    if "inline_container.cc" in str(error) or "iostream error" in str(error):
        return "a file could not be written to its end"
    return first_line(error)
