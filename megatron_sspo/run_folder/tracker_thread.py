"""A tracker in a thread of its own, so that it neither delays a run nor changes how the run ends."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol

from megatron_sspo.errors import first_line
from megatron_sspo.processes.hang import mark_progress

_log = logging.getLogger(__name__)
_MAX_ROWS = 1_000  # that wait for a tracker
_END_SECONDS, _POLL_SECONDS = 30.0, 0.25


class Tracker(Protocol):
    """A tracker that has been started."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Sends the values of a step."""

    def finish(self) -> None:
        """Sends the values that still wait, and ends the tracker's run."""


class TrackerThread:
    """A thread that starts a tracker, gives it rows in order, and finishes it.

    A tracker that fails or falls behind gets no more rows, and a warning says so; the run's own files have every row.

    Args:
        name: the tracker's name, for warnings.
        start: a function that starts the tracker. It runs in the thread as well, because SwanLab has to be finished in
            the thread that has started it.

    Raises:
        BaseException: an error of `start`.
    """

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name, self._start = name, start
        self._rows: SimpleQueue[tuple[Mapping[str, float], int] | None] = SimpleQueue()  # None: no more rows
        self._started: Future[None] = Future()
        self._is_left_out = False
        # no daemon: after the run, `processes.ending` limits the time of a thread that does not end
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self.end()  # after Ctrl-C the thread goes on with the start
            raise

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Appends the values of a step to those that wait for the tracker."""
        if self._rows.qsize() >= _MAX_ROWS:
            self._leave_out(f"from update {step} on", f"{_MAX_ROWS:,} rows wait for it")
        if not self._is_left_out:
            self._rows.put((values, step))

    def end(self) -> None:
        """Lets the thread finish the tracker after the rows that wait."""
        self._rows.put(None)

    def wait(self, deadline: float) -> None:
        """Waits until the tracker is finished, or until `deadline` (`time.monotonic`)."""
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_POLL_SECONDS)
            mark_progress()  # a tracker that does not end is no hang of the run
        if self._thread.is_alive():
            self._leave_out("at the end", f"it does not end within {_END_SECONDS:.0f} s")

    def _run(self) -> None:
        try:
            tracker = self._start()
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        when = ""
        try:
            for values, step in iter(self._rows.get, None):
                when = f"from update {step} on"
                tracker.log(values, step)
            when = "at the end"
            tracker.finish()
        except (Exception, SystemExit) as error:
            self._leave_out(when, f"it failed: {first_line(error)}")

    def _leave_out(self, when: str, why: str) -> None:
        if not self._is_left_out:
            self._is_left_out = True
            _log.warning("%s gets no metrics %s, because %s", self._name, when, why)


def finish(threads: Sequence[TrackerThread]) -> None:
    """Finishes trackers, each after the rows that wait for it. It waits for all of them for at most half a minute."""
    for thread in threads:
        thread.end()
    deadline = time.monotonic() + _END_SECONDS
    for thread in threads:
        thread.wait(deadline)
