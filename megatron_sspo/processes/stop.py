"""Stop requests: a run ends early after an update, with a checkpoint, on all ranks at the same update."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

FILE = "stop"  # making this file in the run's folder requests a stop
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # Slurm sends these before it takes nodes away
BY_SIGNAL = 85  # exit code: the nodes are needed for other jobs, so start the run again later with --resume
BY_FILE = 86  # exit code: a user wanted the run to end here
EXIT_CODES = (BY_SIGNAL, BY_FILE)


_open: list["Stop"] = []  # those whose handlers are installed in this process
_forking = threading.local()  # its `mask` has the signals that were blocked in a thread before it forked


class Stop:
    """The stop requests of a run: signals, handled from construction until `close`, and the file.

    A signal may reach one process an update earlier than another, so the ranks agree before they stop. From then on
    `reason` says why, and `exit_code` is that of all ranks; before they are "" and 0.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._signal = 0
        self._signal_time = 0.0
        self._last_check: float | None = None
        self._longest_interval = 0.0
        self.reason, self.exit_code = "", 0
        self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        _open.append(self)

    def close(self) -> None:
        """Restores the previous signal handlers."""
        _open.remove(self)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def longest_interval(self) -> float:
        """The longest time so far between two calls of `is_requested`, in seconds: a bound on a request's delay."""
        return max(self._longest_interval, time.monotonic() - self._last_check) if self._last_check is not None else 0.0

    def is_requested(self) -> bool:
        """Returns, the same on all ranks, whether any rank got a stop request; removes the file. A collective."""
        from megatron_sspo.processes import agree  # imports torch, which the command line starts without

        self._longest_interval, self._last_check = self.longest_interval, time.monotonic()
        is_main = agree.is_main()
        seconds = self._last_check - self._signal_time if self._signal else 0.0
        # os.path, because Path.exists raises some errors, and would on rank 0 alone
        found = agree.all_gather_objects((is_main and os.path.exists(self._file), int(self._signal), seconds))
        by_file, number, seconds = (max(values) for values in zip(*found, strict=True))
        if by_file:
            self.reason, self.exit_code = f"{self._file} was made", BY_FILE
            if is_main:
                with contextlib.suppress(OSError):
                    self._file.unlink(missing_ok=True)
        elif number:
            self.reason, self.exit_code = f"{signal.Signals(number).name} came {seconds:.1f} s ago", BY_SIGNAL
        return bool(self.exit_code)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._signal:
            self._signal, self._signal_time = number, time.monotonic()


def _before_fork() -> None:
    """Blocks the signals, so that none reaches a child that still has the handlers of this process."""
    if _open:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    if hasattr(_forking, "mask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
        del _forking.mask


def _after_fork_in_child() -> None:
    """Gives a child the default actions: a reward, for example, ends the workers of its own pool by SIGTERM."""
    for number in SIGNALS if _open else ():
        signal.signal(number, signal.SIG_DFL)
    _open.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
