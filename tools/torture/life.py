"""One life of a run: from the command that starts or resumes it to the end of its processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
BY_SIGNAL, BY_FILE = 85, 86  # exit codes of a run that was asked to end: docs/launch.md
_DAMAGED = re.compile(r"(\S*/checkpoints/update-\d{6,})")
_SRUN_SECONDS = 5.0  # for which the other ranks may go on when one has failed


class Life:
    """The command line at work.

    Args:
        number: of this life, from 1.
        arguments: of `megatron-sspo`.
        environment: of its processes.
        output: the file that its output goes to.
        port: where ranks meet; given, the two ranks are started one by one, as Slurm does it. None has `megatron-sspo`
            start them.
    """

    def __init__(
        self, number: int, arguments: list[str], environment: Mapping[str, str], output: Path, port: int | None = None
    ) -> None:
        self.number, self.output = number, output
        self.started = time.monotonic()
        self._failed: float | None = None
        common = {**os.environ, **environment, "TORTURE_LIFE": str(number)}
        places: list[dict[str, str]] = [{}]
        if port is not None:
            shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            places = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        with output.open("w", encoding="utf-8") as file:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "megatron_sspo", *arguments],
                    cwd=ROOT,
                    env={**common, **place},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for place in places
            ]

    def exit_code(self) -> int | None:
        """The first that is not 0, when all have ended; None while one runs. Ends what a failed rank leaves alone."""
        codes = [process.poll() for process in self.processes]
        if None not in codes:
            return next((code for code in codes if code), 0)
        if any(code and code not in (BY_SIGNAL, BY_FILE) for code in codes):
            self._failed = self._failed or time.monotonic()
            if time.monotonic() - self._failed > _SRUN_SECONDS:
                self.kill()
        return None

    def ask(self, number: int) -> None:
        """Sends a signal to what was started."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to what was started."""
        self.ask(signal.SIGKILL)

    def await_end(self) -> None:
        """Waits for the processes that were started."""
        for process in self.processes:
            process.wait()

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def error(self) -> str:
        """The sentence that it ended with; "" without one."""
        found = [line for line in self.text().splitlines() if line.startswith("megatron-sspo")]
        return found[0] if found else ""

    def damaged_checkpoint(self) -> Path | None:
        """The checkpoint that the sentence names, where it says that it is damaged."""
        error = self.error()
        found = _DAMAGED.search(error)
        is_damaged = any(word in error for word in ("damaged", "has no ", "cannot be loaded"))
        return Path(found[1]) if found and is_damaged else None


class Progress:
    """How far a run has come, by what its rank 0 notes of each update: see `recipe.py`."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._read = journal, 0
        self.lines: list[tuple[int, int]] = []  # (life, update)
        self._rest = b""

    def look(self) -> int:
        """Updates made, those that were made again included."""
        if self._journal.exists():
            with self._journal.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            *whole, self._rest = (self._rest + new).split(b"\n")
            for line in whole:
                with contextlib.suppress(ValueError):  # a kill in the middle of a line, and another life's behind it
                    row = json.loads(line)
                    self.lines.append((row["life"], row["update"]))
        return len(self.lines)

    @property
    def update(self) -> int:
        """The newest."""
        self.look()
        return self.lines[-1][1] if self.lines else 0
