"""Console output of a run: a progress bar on a terminal, one line per cycle elsewhere, and a table at the end."""

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

LOG = "log.txt"  # in a run's folder


class Display:
    """The console output of a run and its log file. `silent` is for all ranks but rank 0."""

    def __init__(self, *, silent: bool) -> None:
        self.console = Console(quiet=silent)
        self._silent = silent
        self._progress: Progress | None = None
        self._started = time.monotonic()
        self._log: Path | None = None
        logger = logging.getLogger("megatron_sspo")
        logger.handlers = [_Handler(self)]
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def log_to(self, path: Path) -> None:
        """Appends all later lines and tables to this file as well. Raises OSError if it cannot be written."""
        self._log = path
        self._write(f"--- {datetime.now().astimezone().isoformat(timespec='seconds')}")

    def log(self, text: str) -> None:
        """Prints one line with the time since the start."""
        when = f"{time.monotonic() - self._started:7.1f} s"
        self._write(f"{when}  {text}")
        self._print(Text.assemble((when, "dim"), "  ", text))

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Starts a progress bar of `total` steps if the output is a terminal."""
        self.end()
        if self.console.is_terminal and not self._silent:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            what_is_done = TextColumn("{task.description}", markup=False)  # a run's name may have brackets
            self._progress = Progress(what_is_done, *columns, console=self.console)
            self._progress.start()
            self._progress.add_task(what, total=total, completed=done)

    def advance(self, description: str) -> None:
        """Advances the progress bar by one step."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], advance=1, description=description)

    def end(self) -> None:
        """Removes the progress bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Prints a table."""
        table = Table(title=Text(title))
        for number, column in enumerate(columns):
            table.add_column(Text(column), justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        self._print(table)
        for row in rows:
            self._write("  ".join(map(str, row)))

    def _print(self, what: Text | Table) -> None:
        try:
            self.console.print(what, soft_wrap=isinstance(what, Text))
        except (OSError, SystemExit):  # rich exits where a terminal has closed, or a disk is full; the log has it all
            self.end()
            self.console = Console(quiet=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _write(self, line: str) -> None:
        if self._log is not None:
            with self._log.open("a", encoding="utf-8", errors="backslashreplace") as file:  # a path may not be UTF-8
                file.write(f"{line}\n")


class _Handler(logging.Handler):
    """A logging handler that prints the package's log records through a `Display`."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a log record as one line."""
        self._display.log(record.getMessage())


def pluralize(number: int, noun: str, plural: str = "s") -> str:
    """Returns a number with its noun: "1 process", "2 processes"."""
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def format_update(row: Mapping[str, float]) -> str:
    """Returns the log line of an update."""
    seconds = sum(value for key, value in row.items() if key.startswith("seconds/"))
    below_half = row.get("token_weight/below_half")  # not of an objective that reports no weights
    weights = f"w<½ {below_half:.1%}  " if below_half is not None else ""
    return (
        f"update {int(row['update'])}  reward {row['reward/mean']:.3f}  entropy {row['policy/entropy']:.3f}  "
        f"KL(old) {row['policy/kl_old']:.1e}  {weights}"
        f"grad {row['policy/grad_norm']:.2f}  tokens {row['response/tokens_mean']:.0f}  {seconds:.1f} s"
    )
