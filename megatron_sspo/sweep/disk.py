"""Compares what the runs of a sweep keep on disk with the space that is free."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.files.units import format_bytes
from megatron_sspo.memory.estimate import checkpoint_bytes, model_bytes
from megatron_sspo.preflight.resources import num_checkpoints, read_model_config
from megatron_sspo.processes.console import pluralize
from megatron_sspo.run import Run


def warn_of_disk(runs: Sequence[Run], folder: Path) -> str:
    """Returns a warning if the runs will keep more than the disk has free, or "".

    The sweep starts all the same, since models and checkpoints of finished runs may be removed while others run. A run
    keeps its last checkpoints, of which the last update always makes one, and its model.

    Args:
        runs: those that have not begun.
        folder: the sweep's folder, which exists.

    Raises:
        UserError: the configuration of a run's model cannot be read.
    """
    # a sweep may have thousands of runs of one model, whose parameters are counted once
    models = {(run.model.path, run.model.dtype): run for run in runs}
    sizes = {key: _sizes(run) for key, run in models.items()}
    needed = sum(_kept_bytes(run, *sizes[run.model.path, run.model.dtype]) for run in runs)
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return ""
    return (
        f"the {pluralize(len(runs), 'run')} will keep {format_bytes(needed)} of checkpoints and models, and {folder} "
        f"has {format_bytes(free)} free: keep fewer with --set checkpoints_kept=1, choose another disk with --output, "
        "or remove the checkpoints of finished runs while others run"
    )


def _sizes(run: Run) -> tuple[int, int]:
    """Returns the bytes of a checkpoint and of the finished model."""
    config = read_model_config(run)
    return checkpoint_bytes(run, config), model_bytes(run, config)


def _kept_bytes(run: Run, checkpoint: int, model: int) -> int:
    return min(num_checkpoints(run), run.checkpoints_kept) * checkpoint + model
