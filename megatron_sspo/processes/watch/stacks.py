"""The stacks of this process's threads, for a log that somebody reads when a run hangs."""

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_WRITE_SECONDS = 2.0  # after which a line is not waited for any more


def positions(thread: int) -> Iterator[tuple[int, int]]:
    """Yields the code and the current instruction of each function of a thread's stack; they change with its progress.

    Args:
        thread: the thread's identifier.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield id(frame.f_code), frame.f_lasti
        frame = frame.f_back


def describe_position(rank: int, thread: int) -> str:
    """Returns a sentence that names the function of this package in which a rank's thread waits."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return f"rank {rank} has ended its main thread"
    found = traceback.extract_stack(frame)
    last = ([line for line in found if Path(line.filename).is_relative_to(_PACKAGE)] or found)[-1]
    return f"rank {rank} waits in {last.name} ({Path(last.filename).name}, line {last.lineno})"


def format_stacks(first: int) -> str:
    """Returns the stacks of all threads but the watchdog's own, the thread `first` before the others."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    frames = sys._current_frames()
    for ident in sorted(frames, key=lambda ident: ident != first):
        if not names.get(ident, "").startswith("watchdog"):
            lines += [f"thread {names.get(ident, ident)}:\n", *traceback.format_stack(frames[ident])]
    return "".join(lines).rstrip()


def write_line(text: str, log: Path) -> None:
    """Writes a line to the log and to standard error, by threads, because a disk or a stopped terminal may block."""
    deadline = time.monotonic() + _WRITE_SECONDS
    writers = [
        threading.Thread(target=_append, args=(f"{text}\n", log), name="watchdog-log", daemon=True),
        threading.Thread(target=_print, args=(f"{text}\n",), name="watchdog-log", daemon=True),
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(max(0.0, deadline - time.monotonic()))


def _append(line: str, log: Path) -> None:
    # a path in the line may have bytes that are not UTF-8; one write: lines stay whole
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(line)


def _print(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(line, end="", file=sys.stderr, flush=True)
