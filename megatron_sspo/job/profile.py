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
    """A profiler of some successive updates, maybe of none, and of the work between them, for the run's folder."""

    def __init__(self, updates: range, folder: Path, rank: int) -> None:
        self._updates, self._folder, self._rank = updates, folder / FOLDER, rank
        self._running: profile | None = None

    def before(self, update: int) -> None:
        """Starts the trace if this is the first of the updates."""
        if self._updates and update == self._updates[0]:
            on_device = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._running = profile(activities=[ProfilerActivity.CPU, *on_device])
            self._running.start()

    def after(self, update: int) -> list[str]:
        """Writes the trace if this was the last of the updates, and returns the lines to show."""
        if self._running is None or update != self._updates[-1]:
            return []
        finished = self._running
        self.close()
        path = self._folder / f"updates-{self._updates[0]}-{update}-rank-{self._rank}.json.gz"
        with os_errors_as_user_errors(path):
            self._folder.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                finished.export_chrome_trace(str(temporary))
        return [f"trace: {path}", *largest(finished)]

    def close(self) -> None:
        """Stops a profiler that still runs."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()


def largest(finished: profile) -> list[str]:
    """Returns a line with the sum, and one for each of the largest entries, by time on the GPU if there is one."""
    kind, device = ("self_device_time_total", "GPU") if torch.cuda.is_available() else ("self_cpu_time_total", "CPU")
    entries = sorted(((getattr(entry, kind) / 1e6, entry) for entry in finished.key_averages()), key=lambda e: -e[0])
    total = sum(seconds for seconds, _ in entries) or 1.0
    return [
        f"{total:.2f} s of {device} time in {len(entries)} operations; the largest:",
        *(f"{s / total:6.1%}  {s:8.3f} s  {e.count:8,} calls  {e.key}" for s, e in entries[:_SHOWN]),
    ]
