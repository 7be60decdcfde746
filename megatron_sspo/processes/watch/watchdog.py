"""Ends a run that hangs, with the stack of every rank in its log, and ends the other ranks if one rank has failed."""

import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron_sspo.processes import agree, local
from megatron_sspo.processes.watch.control_store import ControlStore, RanksStatus
from megatron_sspo.processes.watch.progress import last_mark, longest_user_call, user_call
from megatron_sspo.processes.watch.pulse import Pulse
from megatron_sspo.processes.watch.stacks import describe_position, format_stacks, positions, write_line

HUNG = 87  # exit code of a run that hangs
_FAILED = 2  # exit code of a rank that ends because another rank has failed
_CHECK_SECONDS = 0.25
_FROZEN_SECONDS = 8.0  # a process that does not respond for so long counts as frozen
_GRACE_SECONDS = 5.0  # time for the failed rank to end, and for the launcher to see which rank failed
_SHUTDOWN_SECONDS = 8.0  # the part of the stop timeout that is reserved for writing stacks and ending


@dataclass(kw_only=True)
class _Clock:
    """The times (`time.monotonic`) that the watchdog's decisions depend on."""

    progress: float  # the last time when any rank made progress
    own_progress: float
    resumed: float  # when this process last continued after it was stopped
    neighbour: float  # the last time when the neighbouring rank sent a heartbeat
    store: float  # the last time when the store answered
    store_lost: float | None = None  # when the connection to the store broke
    stop_requested_at: float | None = None  # when the first stop signal came
    longest_silence: float = 0.0  # the longest time without progress of any rank that was followed by progress
    silence_allowed_until: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The place of this process among the ranks of the run.

    Attributes:
        rank: the rank of this process.
        hosts: the host name of every rank.
        pids: the pid of every rank.
    """

    rank: int = 0
    hosts: tuple[str, ...] = field(default_factory=lambda: (socket.gethostname(),))
    pids: tuple[int, ...] = field(default_factory=lambda: (os.getpid(),))

    @classmethod
    def gather(cls, rank: int) -> "Ranks":
        """Returns the ranks of the initialized process group. A collective."""
        places = agree.all_gather_objects((socket.gethostname(), os.getpid()))
        return cls(rank=rank, hosts=tuple(host for host, _ in places), pids=tuple(pid for _, pid in places))

    @classmethod
    def alone(cls, rank: int) -> "Ranks":
        """Returns the place of a rank that does not know the others."""
        return cls(rank=rank, hosts=("",) * rank + (socket.gethostname(),), pids=(0,) * rank + (os.getpid(),))

    def others_on_this_host(self) -> list[int]:
        """Returns the other ranks of this rank's host."""
        mine = self.hosts[self.rank]
        return [rank for rank, host in enumerate(self.hosts) if host == mine and rank != self.rank]


class Watchdog:
    """A context manager around a run on one rank; its thread watches the main thread and, by a store, the other ranks.

    A rank makes progress when the Python stack of its main thread changes or when it calls `mark_progress`. A rank that
    waits for another rank makes no progress. The run hangs if no rank makes progress, or if a call of the user's code
    (`watched_user_call`) neither returns nor calls `mark_progress`:

    * for `timeout` seconds;
    * after a stop signal, for `stop_timeout` seconds, or for twice the longest silence, or the longest call of that
      code, so far if longer: a step of a large model may be silent for minutes. The first call of a code is not judged.

    Then every rank writes its stacks to `log` and standard error, and ends with exit code 87. A rank whose process was
    stopped (SIGSTOP) is continued first. If a stop signal comes while a process is stopped, the stacks are written at
    once and the process is continued, so that the run can still save a checkpoint.

    If this context ends by an exception, the other ranks receive the reason and end too.

    A call of C code that keeps Python's lock stops the thread, too. The other ranks then end the run; where there are
    none, or all are in such a call, `Pulse` does.

    Args:
        ranks: the place of this process among the ranks of the run.
        store: the messages between the ranks; None for a single process.
        log: the run's log file.
        timeout: the seconds without progress after which the run ends.
        stop_timeout: the seconds from a stop signal to the end of a run that hangs.
        signals: the stop signals. Python handlers must be installed for them.
        report: a function called with the reason and the exit code when all stacks are written, on the rank that ends
            the run.
    """

    def __init__(
        self,
        ranks: Ranks,
        store: ControlStore | None,
        *,
        log: Path,
        timeout: float,
        stop_timeout: float,
        signals: tuple[signal.Signals, ...],
        report: Callable[[str, int], None],
    ) -> None:
        self._ranks, self._store, self._log = ranks, store, log
        self._timeout, self._stop_timeout, self._signals, self._report = timeout, stop_timeout, signals, report
        now = time.monotonic()
        self._clock = _Clock(progress=now, own_progress=now, resumed=now, neighbour=now, store=now)
        self._main_stack: Any = None  # the main thread's stack at the last check
        self._last_check = now
        self._interval = max(1.0, len(ranks.pids) / 256)  # longer with more ranks, because rank 0 answers them all
        self._main = threading.main_thread().ident or 0
        self._is_closed = threading.Event()
        self._threads = [threading.Thread(target=self._watch, name="watchdog", daemon=True)]
        if store is not None:
            self._threads.append(threading.Thread(target=self._exchange_status, name="watchdog-store", daemon=True))
        self._has_dumped_all_ranks = False
        self._last_dump = -math.inf  # when stacks were last written

    def __enter__(self) -> "Watchdog":
        self._wakeup, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._wakeup_writer, False)
        # The C handler writes a signal's number at once; the Python handler runs only when a collective returns.
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_wakeup)
        grace = 0.0 if self._store is None else 2 * _SHUTDOWN_SECONDS  # the other ranks know more, so they go first
        self._pulse = Pulse(
            self._wakeup,
            log=self._log,
            what=f"rank {self._ranks.rank} (process {os.getpid()} on {socket.gethostname()})",
            timeout=self._timeout + grace,
            stop_timeout=self._stop_timeout + grace,
            reports=local.report_descriptor(),
            exit_code=HUNG,
        )
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self._skip_suspension()
        self._is_closed.set()
        signal.set_wakeup_fd(-1)
        if error is not None and self._store is not None:
            self._store.end("failed", f"rank {self._ranks.rank} failed ({type(error).__name__}: {error})")
        for thread in self._threads:
            thread.join(5.0)
        self._pulse.close()
        if not self._threads[0].is_alive():  # otherwise the thread could read another file with the same descriptor
            os.close(self._wakeup)
            os.close(self._wakeup_writer)

    def reset_longest_silence(self) -> None:
        """Resets the longest silence, because silences during the start of a run say nothing about its steps."""
        self._clock.longest_silence = 0.0

    @contextlib.contextmanager
    def allow_silence(self) -> Iterator[None]:
        """Counts as progress for up to `timeout` seconds. For work that is silent for long, such as a checkpoint."""
        self._clock.silence_allowed_until = time.monotonic() + self._timeout
        try:
            yield
        finally:
            self._clock.silence_allowed_until = 0.0

    # ------------------------------------------------------------------ the two threads

    def _watch(self) -> None:
        while not self._is_closed.wait(_CHECK_SECONDS):
            self._pulse.beat()
            self._skip_suspension()
            self._read_signals()
            self._check_main_thread()
            if self._store is None:
                self._record_progress(self._clock.own_progress)
            if (kind_and_why := self._reason_to_end()) and not self._is_closed.is_set():
                self._end(*kind_and_why)

    def _exchange_status(self) -> None:
        """Sends this rank's progress and reads the others'. It has its own thread, because the store may not answer."""
        assert self._store is not None
        rank, neighbour = self._ranks.rank, (self._ranks.rank + 1) % len(self._ranks.pids)
        sent, clock = 0.0, self._clock
        last = RanksStatus(progress=-1, heartbeat=-1, is_stop_requested=False, dump_requests=0)
        while not self._is_closed.wait(1.0 if clock.stop_requested_at else self._interval):
            has_progressed, sent = clock.own_progress > sent, clock.own_progress
            is_stop_requested = clock.stop_requested_at is not None
            try:
                status = self._store.exchange_status(
                    rank, neighbour, has_progressed=has_progressed, is_stop_requested=is_stop_requested
                )
            except RuntimeError:  # a broken connection cannot be used again
                clock.store_lost = time.monotonic()
                return
            clock.store = now = time.monotonic()
            if status.progress != last.progress:
                self._record_progress(now)
            if status.heartbeat != last.heartbeat:
                clock.neighbour = now
            if status.is_stop_requested and clock.stop_requested_at is None:
                clock.stop_requested_at = now
            if status.dump_requests > last.dump_requests and not self._has_dumped_all_ranks:
                self._has_dumped_all_ranks = True
                self._dump()
                self._continue_stopped()
            last = status

    def _skip_suspension(self) -> None:
        """Excludes from all waits the time in which this process was stopped, as in a job that Slurm suspends."""
        now, clock = time.monotonic(), self._clock
        seconds, self._last_check = now - self._last_check, now
        if seconds < _FROZEN_SECONDS:
            return
        clock.resumed = now
        for name in ("progress", "own_progress", "neighbour", "store"):
            setattr(clock, name, getattr(clock, name) + seconds)
        clock.stop_requested_at = clock.stop_requested_at + seconds if clock.stop_requested_at is not None else None
        self._log_line(f"rank {self._ranks.rank} was stopped for {seconds:.0f} s, and continues here:")
        self._dump()

    def _read_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if set(os.read(self._wakeup, 1024)) & set(self._signals) and self._clock.stop_requested_at is None:
                self._clock.stop_requested_at = time.monotonic()

    def _check_main_thread(self) -> None:
        now = time.monotonic()
        stack = (last_mark(), tuple(positions(self._main)))
        if stack != self._main_stack or now < self._clock.silence_allowed_until:
            self._main_stack, self._clock.own_progress = stack, now

    def _record_progress(self, when: float) -> None:
        silence = when - self._clock.progress
        if silence > 0:
            self._clock.longest_silence = max(self._clock.longest_silence, silence)
            self._clock.progress = when

    # ------------------------------------------------------------------ decisions

    def _reason_to_end(self) -> tuple[str, str] | None:
        """Returns (kind, reason) if the run must end, otherwise None."""
        clock, now = self._clock, time.monotonic()
        if self._store is not None and self._store.ended is not None:
            return self._store.ended
        if clock.store_lost is not None and now - clock.store_lost > _GRACE_SECONDS:
            return "failed", "rank 0 has ended"
        call = user_call()
        silence_of_call = now - max(call.began, last_mark(), clock.resumed) if call else 0.0
        longest_call = longest_user_call(call.what) if call else None
        if call and silence_of_call > self._timeout:
            return "hung", (
                f"{call.what} has not returned for {now - call.began:.0f} s (distributed_timeout={self._timeout:g}; "
                "raise it if that is too short for it)"
            )
        silence = now - max(clock.progress, clock.own_progress if self._store is None else 0.0)
        if silence > self._timeout:
            return "hung", f"no rank has made progress for {silence:.0f} s (distributed_timeout={self._timeout:g})"
        if clock.stop_requested_at is None:
            return None
        waited = now - clock.stop_requested_at
        limit = max(self._stop_timeout - _SHUTDOWN_SECONDS, 1.0)
        frozen = self._describe_frozen_rank(now)
        if frozen and not self._has_dumped_all_ranks:
            self._dump_all_ranks(frozen)
        if frozen and waited > limit:
            return "hung", f"{frozen}, {waited:.0f} s after the stop request"
        if call and longest_call is not None and min(silence_of_call, waited) > max(limit, 2 * longest_call):
            return "hung", f"{call.what} has not returned for {waited:.0f} s after the stop request"
        if min(silence, waited) > max(limit, 2 * clock.longest_silence):
            return "hung", f"no rank has made progress for {silence:.0f} s after the stop request"
        return None

    def _describe_frozen_rank(self, now: float) -> str:
        """Returns a message that names a process that does not respond; "" if all do."""
        if self._store is None:
            return ""
        limit = _FROZEN_SECONDS + 2 * self._interval
        if now - self._clock.store > limit:
            return "rank 0 does not respond"
        if now - self._clock.neighbour > limit:
            rank = (self._ranks.rank + 1) % len(self._ranks.pids)
            return f"rank {rank} on {self._ranks.hosts[rank]} does not respond"
        return ""

    def _dump_all_ranks(self, frozen: str) -> None:
        """Makes all ranks write their stacks, and sends SIGCONT to the ranks of this host, one of which is stopped."""
        self._has_dumped_all_ranks = True
        self._log_line(f"{frozen}: every rank writes its stack, and stopped processes are continued")
        self._dump()
        self._continue_stopped()  # before the call to the store, whose process may be the stopped one
        if self._store is not None:
            self._store.request_dumps()

    def _continue_stopped(self) -> None:
        for rank in self._ranks.others_on_this_host():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._ranks.pids[rank], signal.SIGCONT)

    def _end(self, kind: str, why: str) -> None:
        """Ends this process; the rank that found the reason first waits until the others have written their stacks."""
        self._pulse.close()
        if kind == "failed":
            time.sleep(_GRACE_SECONDS)
            self._log_line(f"rank {self._ranks.rank} ends, because {why}")
            os._exit(_FAILED)
        self._dump()
        self._continue_stopped()
        is_first = self._store is None or self._store.end(kind, why)
        if not is_first and self._store is not None:
            self._store.await_release(2 * _SHUTDOWN_SECONDS)
            os._exit(HUNG)
        if self._store is not None:
            self._store.await_dumps(len(self._ranks.pids), _SHUTDOWN_SECONDS / 2 + self._interval)
        position = describe_position(self._ranks.rank, self._main)
        message = f"the run hangs: {why}; {position}; the stacks of all ranks are in {self._log}"
        self._log_line(message)
        self._report(message, HUNG)  # does not return if a launcher ends all ranks now
        if self._store is not None:  # the first rank ends last: the other ranks wait for it in `await_release`
            self._store.release()
            time.sleep(1.0)
        os._exit(HUNG)

    # ------------------------------------------------------------------ the log

    def _dump(self) -> None:
        """Writes the stacks of this rank, the main thread's first, to the log and to standard error."""
        now = time.monotonic()
        if now - self._last_dump < _FROZEN_SECONDS:
            return
        self._last_dump = now
        rank, host = self._ranks.rank, self._ranks.hosts[self._ranks.rank]
        self._log_line(f"--- stack of rank {rank} (process {os.getpid()} on {host})\n{format_stacks(self._main)}")
        if self._store is not None:
            count = self._store.count_dump  # may block for some seconds
            threading.Thread(target=count, name="watchdog-dump", daemon=True).start()

    def _log_line(self, text: str) -> None:
        write_line(text, self._log)


def _forget_wakeup() -> None:
    """Stops a forked process from writing its own signals into its parent's pipe."""
    with contextlib.suppress(ValueError):  # raised outside of the main thread
        signal.set_wakeup_fd(-1)
