"""Describes what this library asks of the trainer, and defines its errors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

STOPPED_BY_SIGNAL, STOPPED_BY_FILE = 85, 86  # the trainer's exit codes


class LabError(Exception):
    """An error that the user can fix; its text is one sentence."""


class Trainer(Protocol):
    """The trainer's command line, called in this process because every call would else import torch."""

    def load(self, recipe: str, assignments: Sequence[str]) -> Mapping[str, Any]:
        """Returns a run's configuration as its config.json has it; raises an error if it is wrong."""
        ...

    def why_not(self, recipe: str, assignments: Sequence[str], sbatch: Sequence[str] | None) -> str:
        """Returns why a run cannot start, or ""; `sbatch` has its options on the cluster; None: on this machine."""
        ...

    def submit(self, sweep: Path, sbatch: Sequence[str], *, dry_run: bool) -> int:
        """Submits slurm/sweep.sbatch for a sweep's folder, or prints what it would submit; returns an exit code."""
        ...
