"""Traces of torch's profiler, a file of each rank, and the largest entries."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.writing import replacing

FOLDER = "profile"  # in the run's folder
_SHOWN = 10


def check_updates(updates: range, num_updates: int) -> None:
    """Raises UserError if the updates to trace are not all in a run of `num_updates`."""
    if updates and updates[-1] > num_updates:
        raise UserError(f"--profile names update {updates[-1]}, but the run has {num_updates}: choose among them")


class Profiler:
    """A profiler of some successive updates and of the work between them: rollouts, evaluation, checkpoints.

    Args:
        updates: the numbers of the updates; empty: none.
        folder: the run's folder.
        rank: this process, for the trace's name.
    """

    def __init__(self, updates: range, folder: Path, rank: int) -> None:
        self._updates, self._rank = updates, rank
        self._folder = folder / FOLDER
        self._running: profile | None = None

    def before(self, update: int) -> None:
        """Starts the trace if this is the first of the updates."""
        if self._updates and update == self._updates[0]:
            on_device = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._running = profile(activities=[ProfilerActivity.CPU, *on_device])
            self._running.start()

    def after(self, update: int) -> list[str]:
        """Writes the trace if this was the last of the updates.

        Returns:
            The lines to show; none if the profiler goes on or does not run.
        """
        return self._write(update) if self._running and update == self._updates[-1] else []

    def close(self) -> None:
        """Stops a profiler that still runs, because the run ends early; its trace is not written."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _write(self, update: int) -> list[str]:
        running, self._running = self._running, None
        assert running is not None
        running.stop()
        path = self._folder / f"updates-{self._updates[0]}-{update}-rank-{self._rank}.json.gz"
        with os_errors_as_user_errors(path):
            self._folder.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                running.export_chrome_trace(str(temporary))
        return [f"trace: {path}", *largest(running)]


def largest(finished: profile) -> list[str]:
    """Returns a line with the sum, and one for each of the largest entries, by time on the GPU if there is one."""
    on_device = torch.cuda.is_available()
    kind = "self_device_time_total" if on_device else "self_cpu_time_total"
    entries = sorted(finished.key_averages(), key=lambda entry: -getattr(entry, kind))
    total = sum(getattr(entry, kind) for entry in entries) or 1.0
    return [
        f"{total / 1e6:.2f} s of {'GPU' if on_device else 'CPU'} time in {len(entries)} operations; the largest:",
        *(
            f"{getattr(entry, kind) / total:6.1%}  {getattr(entry, kind) / 1e6:8.3f} s  {entry.count:8,} calls  "
            f"{entry.key}"
            for entry in entries[:_SHOWN]
        ),
    ]
