"""Runs a sweep on this machine: some runs at a time, each as `megatron-sspo train` in its own process group."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megatron_sspo.config.naming import shorten
from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.processes import stop
from megatron_sspo.processes.cores import num_cores
from megatron_sspo.processes.parent import describe_exit, exit_with_parent
from megatron_sspo.sweep.folder import LOGS, newest_checkpoint, status, train_arguments
from megatron_sspo.sweep.grid import Cell, Sweep
from megatron_sspo.sweep.progress import SweepProgress

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # the stop signals of a sweep
_MAX_FAILURES = 2  # attempts in a row that fail and leave no newer checkpoint
_POLL_SECONDS = 0.2
_LOG_END = 4096  # bytes at the end of a log, whose last line says why an attempt has failed
_LONGEST_LINE = 1000  # characters of it


@dataclass(kw_only=True)
class _Attempt:
    cell: Cell
    slot: int  # 0 to at_once - 1
    process: "subprocess.Popen[bytes]"
    log: Path
    checkpoint: str  # the newest checkpoint when the attempt began


class Driver:
    """A driver that starts runs until all are finished or have failed, or until a stop signal.

    A run that fails is resumed, unless two attempts in a row have brought no newer checkpoint; the other runs continue.
    A stop signal is passed on to the runs as SIGTERM, so that they save and end. Ctrl-C after that kills them.

    Args:
        folder: the sweep's folder.
        cells: the runs to finish, in this order.
        progress: the display of the sweep's progress.
        at_once: the number of runs at a time.
        environment_of: a function of a run's slot (0 to `at_once` - 1) and cell that returns its added environment.
        parent: the pid of this process's parent. When that process has ended, the runs are killed. None: no such check.
    """

    def __init__(
        self,
        folder: Path,
        sweep: Sweep,
        cells: Sequence[Cell],
        progress: SweepProgress,
        *,
        at_once: int,
        environment_of: Callable[[int, Cell], Mapping[str, str]],
        parent: int | None = None,
    ) -> None:
        self._folder, self._sweep, self._progress = folder, sweep, progress
        self._at_once, self._environment_of, self._parent = at_once, environment_of, parent
        self._waiting = deque(cells)
        self._running: list[_Attempt] = []
        self._failures: dict[str, int] = {}
        self._stop_signal = 0  # the first stop signal
        self._has_failed, self._has_stopped_runs = False, False

    def run(self) -> int:
        """Runs the sweep and returns 0, 1 if a run has failed or was stopped, or `stop.BY_SIGNAL` after a signal."""
        with self._handling_signals():
            try:
                while self._running or (self._waiting and not self._stop_signal):
                    if self._parent not in (None, os.getppid()):
                        return 1  # the runs are killed below
                    self._start_some()
                    for attempt in [a for a in self._running if a.process.poll() is not None]:
                        self._running.remove(attempt)
                        self._handle_exit(attempt)
                    self._progress.update({attempt.cell.name for attempt in self._running})
                    time.sleep(_POLL_SECONDS)
            finally:
                self._kill()
        if self._has_stopped_runs or self._waiting:
            name = signal.Signals(self._stop_signal).name
            self._progress.log(f"{name} came, and the runs have stopped: the same command continues them")
            return stop.BY_SIGNAL
        return int(self._has_failed)

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < self._at_once and not self._stop_signal:
            cell = self._waiting.popleft()
            taken = {attempt.slot for attempt in self._running}
            slot = next(slot for slot in itertools.count() if slot not in taken)
            folder = self._folder / cell.name
            log = self._folder / LOGS / f"{cell.name}.txt"
            command = [sys.executable, "-m", "megatron_sspo", *train_arguments(self._folder, self._sweep, cell)]
            # Signals are blocked until the process is in the list and runs its own program, so that they reach it.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                with os_errors_as_user_errors(log), log.open("ab") as output:
                    process = subprocess.Popen(
                        command,
                        env={**os.environ, **self._environment_of(slot, cell)},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        process_group=0,
                        preexec_fn=partial(_prepare_child, os.getpid(), blocked),
                    )
                attempt = _Attempt(cell=cell, slot=slot, process=process, log=log, checkpoint=newest_checkpoint(folder))
                self._running.append(attempt)
                if self._stop_signal:  # another thread of this process, in which signals are not blocked, has got it
                    process.send_signal(signal.SIGTERM)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._progress.log(f"{cell.name}: {'resumes' if '--resume' in command else 'starts'}")

    def _handle_exit(self, attempt: _Attempt) -> None:
        """Counts a run whose process has ended as finished, failed or stopped, or retries it."""
        name, code = attempt.cell.name, attempt.process.returncode
        if status(self._folder / name).state == "finished":
            self._progress.mark_finished(name)
        elif code == stop.BY_FILE:
            self._progress.mark_failed(name, "was stopped by the file `stop` in its folder")
            self._has_failed = True
        elif self._stop_signal:
            self._has_stopped_runs = True
            self._progress.log(f"{name}: has stopped")
        else:
            self._retry(attempt, f"{describe_exit(code)}: {_last_line(attempt.log)}")

    def _retry(self, attempt: _Attempt, why: str) -> None:
        name = attempt.cell.name
        has_newer_checkpoint = newest_checkpoint(self._folder / name) != attempt.checkpoint
        self._failures[name] = 0 if has_newer_checkpoint else self._failures.get(name, 0) + 1
        if self._failures[name] < _MAX_FAILURES:
            self._progress.log(f"{name}: {why}; retrying")
            self._waiting.appendleft(attempt.cell)
        else:
            self._progress.mark_failed(name, f"{why}; log: {attempt.log}")
            self._has_failed = True

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Handles the stop signals, except those that are ignored, such as SIGHUP under nohup."""
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        handlers: dict[int, Any] = {number: signal.signal(number, self._on_signal) for number in handled}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        if self._stop_signal and number != signal.SIGINT:
            return  # a repeated signal: Slurm, for example, sends several
        kind = signal.SIGKILL if self._stop_signal else signal.SIGTERM
        self._stop_signal = self._stop_signal or number
        for attempt in self._running:
            if attempt.process.returncode is None:
                attempt.process.send_signal(kind)

    def _kill(self) -> None:
        """Kills runs that are left if this process ends by an error; the runs' own processes die with them."""
        for attempt in self._running:
            attempt.process.kill()
        for attempt in self._running:
            attempt.process.wait()


def share_of_machine(slot: int, *, at_once: int, num_processes: int, gpus: Sequence[str]) -> dict[str, str]:
    """Returns environment variables that give a run its share of this machine's cores and GPUs.

    Args:
        slot: the run's slot, 0 to `at_once` - 1.
        at_once: the number of runs at a time.
        num_processes: the number of the run's processes.
        gpus: this machine's GPUs, as CUDA_VISIBLE_DEVICES names them.
    """
    found: dict[str, str] = {}
    if "OMP_NUM_THREADS" not in os.environ:
        cores = num_cores()
        found["OMP_NUM_THREADS"] = str(max(1, cores // (at_once * num_processes)))
    if gpus:
        share = max(len(gpus) // at_once, min(num_processes, len(gpus)))
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[(slot * share + number) % len(gpus)] for number in range(share))
    return found


def _prepare_child(parent: int, blocked: Iterable[int]) -> None:
    """Prepares a new process before its program starts: default signal handlers, and it dies with its parent."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    exit_with_parent(parent)


def _last_line(log: Path) -> str:
    """Returns the last line of an attempt's log that is not empty, without what a terminal would obey."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END))
        lines = file.read().decode(errors="replace").split("\n")
    return shorten(next((line for line in reversed(lines) if line.strip()), "its log is empty"), _LONGEST_LINE)
