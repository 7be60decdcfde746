"""The trackers whose library has an object for a run, with `log(values, step=)` and `finish()`."""

from collections.abc import Mapping
from typing import Any


class RunOfALibrary:
    """A tracker that passes everything on to its library's run."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Sends the values of a step."""
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        """Ends the run."""
        self._run.finish()
