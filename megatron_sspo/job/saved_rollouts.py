"""Rollouts that were generated before: written by `train --generate`, trained on by `train --rollouts`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.batching.holders import outline
from megatron_sspo.checkpoint.batches import read_batches, write_batches
from megatron_sspo.errors import UserError, first_line, os_errors_as_user_errors
from megatron_sspo.processes import agree
from megatron_sspo.run import Run
from megatron_sspo.types import Prompt, RolloutGroup

FOLDER = "rollouts"  # in the folder of a run that has generated


def write_cycle(folder: Path, number: int, groups: Sequence[RolloutGroup]) -> None:
    """Writes the groups of a cycle; every number keeps every bit."""
    path = _path(folder, number)
    with os_errors_as_user_errors(path):
        path.parent.mkdir(exist_ok=True)
        write_batches(path, [list(groups)])


class SavedRollouts:
    """The cycles of a run that has generated in place of an engine, with what training needs of `RolloutSource`."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self._folder = run, folder
        self.cycles = self

    def next(self, update: int) -> list[RolloutGroup]:
        """Returns the groups of the cycle that starts after `update` updates. A collective.

        Raises UserError if the folder does not have the cycle, or it has other sizes than the run.
        """

        def read() -> list[RolloutGroup]:
            nonlocal groups
            groups = self._read(update // self._run.updates_per_sync)
            return outline(groups)

        groups: list[RolloutGroup] = []
        outlines = agree.run_on_rank_0(read)
        return groups if agree.is_main() else outlines

    def _read(self, number: int) -> list[RolloutGroup]:
        path = _path(self._folder, number)
        if not path.exists():
            raise UserError(f"there is no {path}: generate more cycles, or lower num_updates")
        try:
            [groups] = read_batches(path)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({first_line(error)}): generate it again") from error
        wanted = self._run.rollouts.prompts_per_update * self._run.updates_per_sync
        if len(groups) != wanted:
            raise UserError(
                f"{path} has {len(groups)} groups, but a cycle of this run has {wanted}: set "
                "rollouts.prompts_per_update and updates_per_sync as they were"
            )
        return groups

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Does nothing: nothing is generated."""

    def remarks(self, prompts: Sequence[Prompt]) -> list[str]:
        """Returns nothing: rewards are computed."""
        return []

    def metrics(self, row: Mapping[str, float]) -> dict[str, float]:
        """Returns no metrics."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns the state of `RolloutCycles` without prompts."""
        return {"begun": [], "given_up": []}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Does nothing: the cycle follows from the update."""


def _path(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"cycle-{number:06d}.npz"
