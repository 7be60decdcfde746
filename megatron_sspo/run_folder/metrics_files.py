"""The rows of metrics in a run's files, written as JSONL and sent to the trackers, and read again."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.writing import write_atomically

if TYPE_CHECKING:
    from megatron_sspo.run import Tracking

METRICS, EVALUATIONS, ROLLOUTS = "metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl"


class MetricsWriter:
    """The writer of metrics rows, which rank 0 alone has; `first_step`: see `About`."""

    def __init__(
        self, folder: Path, tracking: "Tracking", name: str, config: Mapping[str, Any], *, first_step: int
    ) -> None:
        from megatron_sspo.trackers.open import About, Trackers  # which needs pydantic; readers of rows do not

        self.folder = folder
        self._trackers = Trackers(tracking, About(folder, name, config, first_step))
        self._is_held = False
        self._waiting: list[Mapping[str, float]] = []

    def write(self, file_name: str, row: Mapping[str, float]) -> None:
        """Appends a row, whose `update` is the trackers' step. It is on disk when this returns. Raises UserError."""
        path = self.folder / file_name
        with os_errors_as_user_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._waiting.append(row)
        if not self._is_held:
            self.release()

    def hold(self) -> None:
        """Holds rows back from the trackers, which take steps in order, until a row of an earlier update is written."""
        self._is_held = True

    def release(self) -> None:
        """Sends the rows that wait to the trackers, in the order of updates."""
        self._is_held = False
        waiting, self._waiting = sorted(self._waiting, key=lambda row: row["update"]), []
        for row in waiting:
            values = {key: value for key, value in row.items() if key != "update"}
            self._trackers.log(values, int(row["update"]))

    def close(self) -> None:
        """Finishes the trackers."""
        self.release()
        self._trackers.finish()


def read(path: Path) -> list[dict[str, float]]:
    """Returns the rows of a metrics file without an incomplete last line, which a kill can leave; [] without a file."""
    if not path.exists():
        return []
    rows = []
    with os_errors_as_user_errors():
        lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
                if not isinstance(row["update"], int | float):
                    raise TypeError("its update is no number")
                rows.append(row)
            except (ValueError, LookupError, TypeError) as error:
                raise UserError(f"{path}, line {number} is not a row ({error!r}): fix or remove the line") from error
    return rows


def truncate_after(path: Path, update: int) -> None:
    """Removes the rows of updates after `update`, and an incomplete last line, from a metrics file.

    Except in the file of rollouts, the rows of an update become one with the last value of each number: other sets may
    have been evaluated after a resumption. Raises UserError if another line is not a row.
    """
    if not path.exists():
        return
    kept = [row for row in read(path) if row["update"] <= update]
    if path.name != ROLLOUTS:
        of_updates: dict[float, dict[str, float]] = {}
        for row in kept:
            of_updates[row["update"]] = of_updates.get(row["update"], {}) | row
        kept = [*of_updates.values()]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
