"""What a person sees while a run goes on: a live bar on a terminal, a line a cycle elsewhere, a table at the end."""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


class Display:
    """The screen of a run, and its log file. On every rank but 0 it stays silent."""

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
        """From here on, lines and tables are appended to this file as well."""
        self._log = path
        self._write(f"--- {datetime.now().astimezone().isoformat(timespec='seconds')}")

    def say(self, text: str) -> None:
        """One line, with the time since the start."""
        self._write(f"{time.monotonic() - self._started:7.1f} s  {Text.from_markup(text).plain}")
        self.console.print(
            f"[dim]{time.monotonic() - self._started:7.1f} s[/dim]  {text}", highlight=False, soft_wrap=True
        )

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Starts a bar of `total` steps, where there is a terminal to draw it on."""
        self.end()
        if self.console.is_terminal and not self._silent:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._progress = Progress(TextColumn("{task.description}"), *columns, console=self.console)
            self._progress.start()
            self._progress.add_task(what, total=total, completed=done)

    def advance(self, description: str) -> None:
        """One step done."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], advance=1, description=description)

    def end(self) -> None:
        """Takes the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table of text."""
        table = Table(title=title)
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*map(str, row))
        self.console.print(table)
        for row in rows:
            self._write("  ".join(map(str, row)))

    def _write(self, line: str) -> None:
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


class _Handler(logging.Handler):
    """What other parts of the package have to say, in its place among the lines."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self._display.say(escape(record.getMessage()))


def count(number: int, noun: str, plural: str = "s") -> str:
    """A number with its noun: "1 process", "2 processes"."""
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def summary(row: Mapping[str, float]) -> str:
    """The line of an update."""
    seconds = sum(value for key, value in row.items() if key.startswith("seconds/"))
    return (
        f"update {int(row['update'])}  reward {row['reward/mean']:.3f}  entropy {row['policy/entropy']:.3f}  "
        f"KL(old) {row['policy/kl_old']:.1e}  w<½ {row['token_weight/below_half']:.1%}  "
        f"grad {row['policy/grad_norm']:.2f}  tokens {row['response/tokens_mean']:.0f}  {seconds:.1f} s"
    )
