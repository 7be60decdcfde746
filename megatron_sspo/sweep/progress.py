"""Shows the progress of a sweep: a live table on a terminal, one line per minute elsewhere."""

import time
from collections.abc import Mapping, Set
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from megatron_sspo.processes.console import Display, pluralize
from megatron_sspo.sweep.folder import status

_CHECK_SECONDS = 1.0  # between two reads of the runs' folders
_LINE_SECONDS = 60.0
_MAX_SHOWN = 20  # runs


class SweepProgress:
    """The progress of a sweep, which it counts and shows.

    Args:
        folder: the sweep's folder.
        updates: the number of updates of each run, by its name.
        display: the console and log file.
    """

    def __init__(self, folder: Path, updates: Mapping[str, int], display: Display) -> None:
        self._folder, self._updates, self._display = folder, updates, display
        found = {name: status(folder / name) for name in updates}
        self._done = {name: one.update for name, one in found.items()}
        self._finished = {name for name, one in found.items() if one.state == "finished"}
        self._failed: dict[str, str] = {}
        self._running: Set[str] = set()
        self._began, self._before = time.monotonic(), sum(self._done.values())
        self._last_check = self._last_print = self._began
        self._live: Live | None = None
        if display.console.is_terminal:
            self._live = Live(console=display.console, auto_refresh=False, transient=True)
            self._live.start()

    def close(self) -> None:
        """Removes the table, and prints the failed runs and a summary."""
        if self._live is not None:
            self._live.stop()
        for name, why in self._failed.items():
            self.log(f"{name} {why}")
        self.log(self.summary_line())

    def log(self, text: str) -> None:
        """Prints one line above the table, with the time since the start."""
        self._display.log(text)

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
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif now - self._last_print >= _LINE_SECONDS:
            self._last_print = now
            self.log(self.summary_line())

    def summary_line(self) -> str:
        """Returns a summary line: the runs by state, the updates, the time left."""
        failed = f", {len(self._failed)} failed" if self._failed else ""
        running = f", {len(self._running)} running" if self._running else ""
        done, total = sum(self._done.values()), sum(self._updates.values())
        to_go = total - done - sum(self._updates[name] - self._done[name] for name in self._failed)
        left = f", {self._estimate_time_left(done, to_go)}" if to_go > 0 else ""
        runs = f"{len(self._finished)} of {pluralize(len(self._updates), 'run')} finished{running}{failed}"
        return f"{runs}; update {done:,} of {total:,}{left}"

    def _estimate_time_left(self, done: int, to_go: int) -> str:
        """Returns the estimated time left, from the speed of updates since the start of this command."""
        gained = done - self._before
        if gained <= 0:
            return "time left unknown"
        return f"{format_duration(to_go / gained * (time.monotonic() - self._began))} left"

    def _table(self) -> Group:
        table = Table.grid(padding=(0, 1))
        for name in sorted(self._running)[:_MAX_SHOWN]:
            done, total = self._done[name], self._updates[name]
            bar = ProgressBar(total=total, completed=done, width=24)
            table.add_row(Text(name, overflow="ellipsis", no_wrap=True), bar, f"{done}/{total}")
        return Group(table, Text(self.summary_line()))


def format_duration(seconds: float) -> str:
    """Formats a duration as 45 s, 12 min, or 3 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
