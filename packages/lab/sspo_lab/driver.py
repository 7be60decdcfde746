"""Runs a sweep: some runs at a time, each as a command of `megatron-sspo` in its own process group."""

import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sspo_lab.folder import LOGS, newest_checkpoint, status
from sspo_lab.grid import Cell
from sspo_lab.progress import SweepProgress
from sspo_lab.trainer import STOPPED_BY_FILE, STOPPED_BY_SIGNAL

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # the stop signals of a sweep
_MAX_FAILURES = 2  # attempts in a row that fail and leave no newer checkpoint
_POLL_SECONDS = 0.2
_LOG_END = 4096  # bytes at the end of a log, whose last line says why an attempt has failed
_LONGEST_LINE = 1000  # characters of it
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


Start = tuple[Sequence[str], Mapping[str, str]]  # the arguments of `megatron-sspo`, and variables of the environment


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
        start: a function of a run's slot (0 to `at_once` - 1) and cell.
        stopped: what a stop signal does, for the message.
    """

    def __init__(
        self,
        folder: Path,
        cells: Sequence[Cell],
        progress: SweepProgress,
        *,
        at_once: int,
        start: Callable[[int, Cell], Start],
        stopped: str = "the runs have stopped",
    ) -> None:
        self._folder, self._progress, self._stopped = folder, progress, stopped
        self._at_once, self._start = at_once, start
        self._waiting = deque(cells)
        self._running: list[_Attempt] = []
        self._failures: dict[str, int] = {}
        self._arrived: deque[int] = deque()  # signals that were not looked at yet
        self._stop_signal = 0  # the first stop signal
        self._has_failed, self._has_stopped_runs = False, False

    def run(self) -> int:
        """Runs the sweep and returns 0, 1 if a run has failed or was stopped, or `STOPPED_BY_SIGNAL` after a signal."""
        with self._handling_signals():
            try:
                while self._running or (self._waiting and not self._stop_signal):
                    self._handle_signals()
                    self._start_some()
                    for attempt in [a for a in self._running if a.process.poll() is not None]:
                        self._running.remove(attempt)
                        self._handle_exit(attempt)
                    self._progress.update({attempt.cell.name for attempt in self._running})
                    time.sleep(_POLL_SECONDS)
            finally:
                for attempt in self._running:  # left by an error; the runs' own processes die with them
                    attempt.process.kill()
                    attempt.process.wait()
        if self._has_stopped_runs or self._waiting:
            name = signal.Signals(self._stop_signal).name
            self._progress.log(f"{name} came, and {self._stopped}: the same command continues them")
            return STOPPED_BY_SIGNAL
        return int(self._has_failed)

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < self._at_once and not self._stop_signal:
            cell = self._waiting.popleft()
            taken = {attempt.slot for attempt in self._running}
            slot = next(slot for slot in itertools.count() if slot not in taken)
            folder, log = self._folder / cell.name, self._folder / LOGS / f"{cell.name}.txt"
            is_begun = (folder / "config.json").exists()
            arguments, environment = self._start(slot, cell)
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "megatron_sspo", *arguments],
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    preexec_fn=partial(_exit_with_parent, os.getpid()),
                )
            checkpoint = newest_checkpoint(folder)
            self._running.append(_Attempt(cell=cell, slot=slot, process=process, log=log, checkpoint=checkpoint))
            self._progress.log(f"{cell.name}: {'resumes' if is_begun else 'starts'}")

    def _handle_exit(self, attempt: _Attempt) -> None:
        """Counts a run whose process has ended as finished, failed or stopped, or retries it."""
        name, code = attempt.cell.name, attempt.process.returncode
        if status(self._folder / name).state == "finished":
            self._progress.mark_finished(name)
        elif code in (STOPPED_BY_FILE, 0):  # a job of Slurm ends with 0 then, too
            self._progress.mark_failed(name, "was stopped by the file `stop` in its folder")
            self._has_failed = True
        elif self._stop_signal:
            self._has_stopped_runs = True
            self._progress.log(f"{name}: has stopped")
        else:
            self._retry(attempt, f"{_describe_exit(code)}: {_last_line(attempt.log)}")

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
        handlers: dict[int, Any] = {
            number: signal.signal(number, lambda n, _: self._arrived.append(n)) for number in handled
        }
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _handle_signals(self) -> None:
        """Passes on the signals that have arrived, here and not in a handler, so that no starting run misses one."""
        while self._arrived:
            number = self._arrived.popleft()
            if self._stop_signal and number != signal.SIGINT:
                continue  # a repeated signal: Slurm, for example, sends several
            kind = signal.SIGKILL if self._stop_signal else signal.SIGTERM
            self._stop_signal = self._stop_signal or number
            for attempt in self._running:
                attempt.process.send_signal(kind)


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
        cores = len(os.sched_getaffinity(0))
        found["OMP_NUM_THREADS"] = str(max(1, cores // (at_once * num_processes)))
    if gpus:
        share = max(len(gpus) // at_once, min(num_processes, len(gpus)))
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[(slot * share + number) % len(gpus)] for number in range(share))
    return found


def visible_gpus() -> list[str]:
    """Returns this machine's GPUs as CUDA_VISIBLE_DEVICES names them; none if there is no nvidia-smi."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    return [str(number) for number, _ in enumerate(re.findall(r"^GPU \d+:", done.stdout, re.MULTILINE))]


def _exit_with_parent(parent: int) -> None:
    """Makes the kernel kill this process, which is to become a run, when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    known = {number.value: number.name for number in signal.Signals}  # most real-time signals have no name
    return f"was killed by {known.get(-code, f'signal {-code}')}"


def _last_line(log: Path) -> str:
    """Returns the last line of an attempt's log that is not empty, without what a terminal would obey."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END))
        lines = file.read().decode(errors="replace").split("\n")
    line = next((line for line in reversed(lines) if line.strip()), "its log is empty")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)[:_LONGEST_LINE]
