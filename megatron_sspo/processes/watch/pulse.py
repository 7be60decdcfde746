"""Ends a process none of whose Python threads can run, because a call of C code does not give back Python's lock.

A watchdog is a thread, so such a call stops it, too: a regular expression that backtracks without end, a huge power, a
library that waits while it holds the lock. `Pulse` starts this file as a program of its own, which imports only the
standard library; the watchdog's thread sends it a byte at every check.
"""

import contextlib
import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_POLL_SECONDS = 0.5
_STACK_SECONDS = 1.0  # for the process to write its stacks
_REPORT_SECONDS = 5.0  # for the launcher to end all ranks after the report, or for a disk or a terminal to take a line
_DUMP_SIGNAL = signal.SIGUSR2  # its handler in C writes the stacks, without Python's lock


class Pulse:
    """The watched side: `beat` tells the program that a thread of this process runs.

    Without a beat for `timeout` seconds, or for `stop_timeout` seconds after a signal that no thread has read, the
    program writes one sentence to the log, standard error and the launcher, and kills this process, which first writes
    its stacks to standard error. The time in which this process is stopped (SIGSTOP) does not count.

    If this process ends without `close`, the program writes that, unless `launch` has started this process and sees it.

    Args:
        signals: the reading end of the pipe of `signal.set_wakeup_fd`, which a thread of this process empties.
        log: the run's log file.
        what: the name of this process, for the message.
        timeout: see above.
        stop_timeout: see above.
        reports: the file descriptor of reports to `launch`; None if that has not started this process.
        exit_code: the exit code of the whole run, for `launch`.
    """

    def __init__(
        self,
        signals: int,
        *,
        log: Path,
        what: str,
        timeout: float,
        stop_timeout: float,
        reports: int | None,
        exit_code: int,
    ) -> None:
        # a copy of standard error: the stream may be closed and its number used again
        self._errors = os.fdopen(os.dup(2), "wb")
        faulthandler.register(_DUMP_SIGNAL, self._errors, all_threads=True)
        theirs, self._ours = os.pipe()
        os.set_blocking(self._ours, False)
        passed = [theirs, signals, *([reports] if reports is not None else [])]
        numbers = (os.getpid(), theirs, signals, -1 if reports is None else reports, exit_code, timeout, stop_timeout)
        try:
            self._program = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(log), what, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,  # a signal to this process's group does not reach the program
            )
        finally:
            os.close(theirs)

    def beat(self) -> None:
        """Tells the program that a thread runs."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._ours, b".")

    def close(self) -> None:
        """Ends the program. A second call does nothing.

        The end of the pipe would not end it: a forked child may have a copy of this process's end. The program would
        then take the silence for a hang.
        """
        if self._ours >= 0:
            self._program.kill()
            self._program.wait()
            os.close(self._ours)
            self._ours = -1
            faulthandler.unregister(_DUMP_SIGNAL)
            self._errors.close()


def _main(arguments: Sequence[str]) -> None:
    log, what = Path(arguments[0]), arguments[1]
    parent, beats, signals, reports, exit_code = map(int, arguments[2:7])
    timeout, stop_timeout = map(float, arguments[7:])
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):  # Slurm sends them to all processes
        signal.signal(number, signal.SIG_IGN)
    silence, last = 0.0, time.monotonic()
    while os.getppid() == parent:
        if select.select([beats], [], [], _POLL_SECONDS)[0]:
            if not os.read(beats, 4096):
                break
            silence = 0.0
        now = time.monotonic()
        if not _is_stopped(parent):
            silence += min(now - last, 2 * _POLL_SECONDS)  # this process may have been stopped, too
        last = now
        limit, name = (timeout, "distributed_timeout")
        if stop_timeout < timeout and select.select([signals], [], [], 0.0)[0]:
            limit, name = stop_timeout, "stop_timeout"
        if silence > limit:
            message = (
                f"the run hangs: no Python thread of {what} has run for {silence:.0f} s ({name}), because a call of C "
                "code does not return; the stacks of that process are in its standard error"
            )
            _end(parent, message, log, reports, exit_code)
            return
    if reports < 0:
        message = (
            f"{what} has ended in the middle of the run: it was killed, perhaps because memory ran out, or code that "
            "it ran called os._exit; continue with --resume"
        )
        writer = threading.Thread(target=_write, args=(message, log), daemon=True)
        writer.start()
        writer.join(_REPORT_SECONDS)


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"Tt"
    return False


def _end(pid: int, message: str, log: Path, reports: int, exit_code: int) -> None:
    """Writes the message, and kills the process."""
    threading.Thread(target=_write, args=(message, log), daemon=True).start()  # a disk or a terminal may block
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _DUMP_SIGNAL)
        time.sleep(_STACK_SECONDS)
        if reports >= 0:
            os.write(reports, f"{exit_code} {message}\0".encode(errors="surrogateescape"))
            time.sleep(_REPORT_SECONDS)
        os.kill(pid, signal.SIGKILL)


def _write(message: str, log: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"megatron-sspo: {message}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{message}\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
