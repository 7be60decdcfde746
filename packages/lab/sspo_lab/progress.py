"""Says how far a sweep is: in the last line of a terminal, elsewhere in one line per minute, and in its log."""

import sys
import time
from collections.abc import Mapping, Set
from datetime import timedelta
from pathlib import Path

from sspo_lab.folder import LOGS, status

_CHECK_SECONDS = 1.0  # between two reads of the runs' folders
_LINE_SECONDS = 60.0


class SweepProgress:
    """The progress of a sweep in a folder, which it counts and shows, from the number of updates of each run."""

    def __init__(self, folder: Path, updates: Mapping[str, int]) -> None:
        self._folder, self._updates = folder, updates
        found = {name: status(folder / name) for name in updates}
        self._done = {name: one.update for name, one in found.items()}
        self._finished = {name for name, one in found.items() if one.state == "finished"}
        self._failed: dict[str, str] = {}
        self._running: Set[str] = set()
        self._began, self._before = time.monotonic(), sum(self._done.values())
        self._last_check = self._last_print = self._began
        self._is_terminal = sys.stdout.isatty()

    def close(self) -> None:
        """Prints the failed runs and a summary."""
        for name, why in self._failed.items():
            self.log(f"{name} {why}")
        self.log(self.summary_line())

    def log(self, text: str) -> None:
        """Prints one line with the time since the start, and appends it to the sweep's log."""
        line = f"{time.monotonic() - self._began:7.1f} s  {text}"
        with (self._folder / LOGS / "sweep.txt").open("a", encoding="utf-8") as file:
            print(line, file=file)
        print(f"\r\x1b[K{line}" if self._is_terminal else line, flush=True)

    def mark_finished(self, name: str) -> None:
        """Counts a run that is finished."""
        self._finished.add(name)
        self._done[name] = status(self._folder / name).update
        self.log(f"{name}: finished")

    def mark_failed(self, name: str, why: str) -> None:
        """Counts a run that is not retried any more."""
        self._failed[name] = why
        self.log(f"{name}: {why}")

    def update(self, running: Set[str]) -> None:
        """Reads the progress of the running runs and shows it, if that is due."""
        self._running = running
        now = time.monotonic()
        if now - self._last_check < _CHECK_SECONDS:
            return
        self._last_check = now
        for name in running:
            self._done[name] = status(self._folder / name).update
        if self._is_terminal:
            print(f"\r\x1b[K{self.summary_line()}", end="", flush=True)
        elif now - self._last_print >= _LINE_SECONDS:
            self._last_print = now
            self.log(self.summary_line())

    def summary_line(self) -> str:
        """Returns a summary line: the runs by state, the updates, the time left."""
        failed = f", {len(self._failed)} failed" if self._failed else ""
        running = f", {len(self._running)} running" if self._running else ""
        done, total = sum(self._done.values()), sum(self._updates.values())
        to_go = total - done - sum(self._updates[name] - self._done[name] for name in self._failed)
        gained, seconds = done - self._before, time.monotonic() - self._began
        left = timedelta(seconds=round(to_go / gained * seconds)) if gained > 0 else "unknown time"
        runs = f"{len(self._finished)} of {pluralize(len(self._updates), 'run')} finished{running}{failed}"
        return f"{runs}; update {done:,} of {total:,}{f', {left} left' if to_go > 0 else ''}"


def pluralize(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
