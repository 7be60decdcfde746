"""Saves checkpoints in the background, by processes that end with the trainer."""

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from megatron_sspo.errors import UserError, first_line
from megatron_sspo.files.manifest import Entry, checksums_of_rank
from megatron_sspo.processes import agree
from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.processes.parent import exit_with_parent
from megatron_sspo.processes.stop import SIGNALS

_STALLED_SECONDS = 600.0  # without growth of the files, after which a writer counts as hung
_START_SECONDS = 30.0  # for a forked process to begin its work
_MAX_STARTS = 3
_POLL_SECONDS = 0.05


class AsyncSave:
    """A save in progress. It writes the state at the time of its creation, even if the model changes meanwhile.

    Megatron-Core's class for this (`AsyncCallsQueue`) needs CUDA. This class does the same: it copies tensors to the
    host and forks a process, which sees memory as it was and writes by further processes.

    A process that is forked from one with threads may deadlock before it executes a line of Python (in CPython up to
    3.11.7 because of its own lock, gh-112275; in any release because of a library's lock). So the writer reports that
    it has started, and one that does not is killed and forked again.

    Args:
        request: the request that `dist_checkpointing.save` returned.
        results: the queue through which the writing process reports what it has written.
        path: the folder of the checkpoint.
    """

    def __init__(self, request: Any, results: "ResultQueue", path: Path) -> None:
        self._request, self._results, self._path = request, results, path
        self._rank = dist.get_rank()
        self._size, self._grown_at = -1, time.monotonic()  # bytes of this rank's files, and when they last grew
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checksums")
        self._checksums: Future[dict[str, Entry]] | None = None
        self._process: Any = None
        if request.async_fn is None:  # this rank has nothing to write
            return
        arguments = list(request.async_fn_args)
        if request.preload_fn is not None:
            arguments[1] = _copy_to_host(arguments[1])
        self._process = _start(request.async_fn, arguments, request.async_fn_kwargs, path)
        results.close_writer()

    def is_done(self) -> bool:
        """Returns whether every rank has written its part, so that the checkpoint is complete. A collective.

        Raises:
            UserError: a part could not be written, or its writer hangs.
        """
        if not all(agree.all_gather_objects(self._is_ready())):
            return False
        self._finish()
        return True

    def wait(self) -> None:
        """Waits until the checkpoint is complete. A collective, which raises the errors of `is_done`."""
        while not self._is_ready():
            mark_progress()  # a disk on which nothing grows ends the wait
            time.sleep(_POLL_SECONDS)
        agree.barrier()
        self._finish()

    def checksums(self) -> dict[str, Entry]:
        """Returns the checksums of the tensors that this rank has written, after `is_done` was true or after `wait`."""
        assert self._checksums is not None
        return self._checksums.result()

    def cancel(self) -> None:
        """Stops writing a checkpoint that is not needed any more. Not a collective."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _is_written(self) -> bool:
        self._results.collect()
        if self._process is None or _has_ended(self._process):
            return True
        size = sum(path.stat().st_size for path in self._path.glob(f"__{self._rank}_*.distcp"))
        if size != self._size:
            self._size, self._grown_at = size, time.monotonic()
        if time.monotonic() - self._grown_at > _STALLED_SECONDS:
            self._process.kill()
            raise UserError(
                f"the checkpoint {self._path} has not grown for {_STALLED_SECONDS:.0f} s: check the disk, and resume "
                "from the previous checkpoint"
            )
        return False

    def _is_ready(self) -> bool:
        """Returns whether this rank's tensors are written, and read again by a thread for their checksums."""
        if self._checksums is None:
            if not self._is_written():
                return False
            self._checksums = self._thread.submit(checksums_of_rank, self._rank, self._path)
        return self._checksums.done()

    def _finish(self) -> None:
        self._thread.shutdown()
        if self._process is not None:
            self._process.join()
            self._results.collect()
        with report_save_errors(self._path):
            for finalize in self._request.finalize_fns:
                finalize()


def _has_ended(process: Any) -> bool:
    """Returns whether a process has ended, also if code of the user has waited for all processes and got its exit code.

    `is_alive` would then be true forever. The sentinel alone is not enough: it is open in processes that another thread
    has forked at the same moment.
    """
    return not process.is_alive() or bool(wait([process.sentinel], 0))


def _start(function: Any, arguments: list[Any], keywords: dict[str, Any], path: Path) -> Any:
    """Forks the process that writes.

    Raises:
        UserError: the process does not begin its work.
    """
    context: Any = multiprocessing.get_context("fork")
    for _ in range(_MAX_STARTS):
        started, ready = Pipe(duplex=False)
        process = context.Process(target=_write, args=(ready, function, arguments, keywords))
        with children_end_with_this_process():
            process.start()
        ready.close()
        if started.poll(_START_SECONDS):
            return process
        process.kill()
        process.join()
    raise UserError(
        f"the process that writes the checkpoint {path} does not start: check the memory of {socket.gethostname()}, "
        "and resume from the previous checkpoint"
    )


def _write(ready: Any, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> None:
    """Runs in the writing process: reports that it has started, then calls Megatron's writer."""
    ready.send_bytes(b"+")
    ready.close()
    signal.signal(signal.SIGCHLD, _exit_if_worker_died)
    function(*arguments, **keywords)


def _exit_if_worker_died(*_: object) -> None:
    """Ends the writing process if one of its workers was killed; Megatron would wait for that worker forever (0.16)."""
    workers = list(multiprocessing.process._children)  # pyright: ignore[reportAttributeAccessIssue]
    if any(worker.exitcode for worker in workers):  # None: it is running; 0: it is done
        os._exit(1)


@contextlib.contextmanager
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


class ResultQueue:
    """A queue for one value, through which the writing process passes what it has written to the waiting process."""

    def __init__(self) -> None:
        self._reader, self._writer = Pipe(duplex=False)
        self._value: Any = None

    def put(self, value: Any) -> None:
        """Sends the value; called in the writing process."""
        self._writer.send(value)

    def close_writer(self) -> None:
        """Closes the waiting process's copy of the writing end; called once the writing process has its own."""
        self._writer.close()

    def collect(self) -> None:
        """Takes the value if it has arrived, so that the writing process can end; called in the waiting process."""
        if self._value is None and self._reader.poll():
            with contextlib.suppress(EOFError, OSError):  # the writing process was killed, perhaps while it sent
                self._value = self._reader.recv()

    def get_nowait(self) -> Any:
        """Returns the value, or an error if the writing process ended without one. Megatron shows it on all ranks."""
        if self._value is None:
            return RuntimeError("the process that writes was killed, perhaps because memory ran out")
        return self._value


def _copy_to_host(buckets: Any) -> Any:
    """Copies tensors to the host like Megatron's `preload_tensors`, which waits for a GPU even if there is none."""
    copied = []
    for file_name, storage_key, (content, tensors) in buckets:
        copied.append((file_name, storage_key, (content, [(item, tensor.to("cpu")) for item, tensor in tensors])))
    return copied


_fork_parent = 0  # this process's pid while it forks writers, otherwise 0


@contextlib.contextmanager
def children_end_with_this_process() -> Iterator[None]:
    """Makes the processes that are forked inside end with this one.

    Megatron-Core (0.16) forks processes that write, which would wait forever if this process is killed meanwhile.
    """
    global _fork_parent
    _fork_parent = os.getpid()
    try:
        yield
    finally:
        _fork_parent = 0


def _after_fork() -> None:
    global _fork_parent
    if _fork_parent:
        exit_with_parent(_fork_parent)
        # Slurm and a terminal send them to all processes: after a stop request the checkpoint is still written, and
        # after Ctrl-C the trainer kills its writer
        for number in (*SIGNALS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _fork_parent = os.getpid()  # for the processes that this one forks


os.register_at_fork(after_in_child=_after_fork)
