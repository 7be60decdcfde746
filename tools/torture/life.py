"""An attempt of a run: from the command that starts or resumes it to the end of its processes."""

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

from megatron_sspo.processes import stop

ROOT = Path(__file__).parents[2]
_DAMAGED = re.compile(r"(\S*/checkpoints/update-\d{6,})")
_SRUN_SECONDS = 5.0  # the time until the other ranks are killed when one has failed


class Attempt:
    """The processes of one `megatron-sspo` command.

    Args:
        number: the number of this attempt, from 1.
        arguments: the arguments of `megatron-sspo`.
        environment: environment variables for its processes.
        output: the file for its output.
        port: the rendezvous port. If it is given, the two ranks are started one by one, as Slurm does; None: they are
            started by `megatron-sspo`.
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
        """Returns the first nonzero exit code or 0 when all have ended, None before. Kills ranks if one has failed."""
        codes = [process.poll() for process in self.processes]
        if None not in codes:
            return next((code for code in codes if code), 0)
        if any(code and code not in stop.EXIT_CODES for code in codes):
            self._failed = self._failed or time.monotonic()
            if time.monotonic() - self._failed > _SRUN_SECONDS:
                self.kill()
        return None

    def send_signal(self, number: int) -> None:
        """Sends a signal to the started processes."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL to the started processes."""
        self.send_signal(signal.SIGKILL)

    def await_end(self) -> None:
        """Waits for the end of the started processes."""
        for process in self.processes:
            process.wait()

    def text(self) -> str:
        """Returns the output so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def error(self) -> str:
        """Returns the error message that the attempt ended with; "" if there is none."""
        found = [line for line in self.text().splitlines() if line.startswith("megatron-sspo")]
        return found[0] if found else ""

    def damaged_checkpoint(self) -> Path | None:
        """Returns the checkpoint that the error message calls damaged; None if there is none."""
        error = self.error()
        found = _DAMAGED.search(error)
        is_damaged = any(word in error for word in ("damaged", "has no ", "cannot be loaded"))
        return Path(found[1]) if found and is_damaged else None


class Progress:
    """The progress of a run, from the journal that its rank 0 writes for each update: see `recipe.py`."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._read = journal, 0
        self.lines: list[tuple[int, int]] = []  # (attempt, update)
        self._rest = b""

    def read_new_lines(self) -> int:
        """Reads new lines of the journal; returns the number of updates so far, including repeated ones."""
        if self._journal.exists():
            with self._journal.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            *whole, self._rest = (self._rest + new).split(b"\n")
            for line in whole:
                with contextlib.suppress(ValueError):  # a line cut by a kill, with a line of the next attempt after it
                    row = json.loads(line)
                    self.lines.append((row["attempt"], row["update"]))
        return len(self.lines)

    @property
    def update(self) -> int:
        """The newest update."""
        self.read_new_lines()
        return self.lines[-1][1] if self.lines else 0
