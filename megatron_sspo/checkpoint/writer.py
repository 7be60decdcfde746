"""Writes a run's checkpoints, either while the trainer waits or in the background."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_sspo.checkpoint.saving import AsyncSave
from megatron_sspo.checkpoint.state import State, begin_checkpoint, describe_checkpoint, finish_checkpoint
from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.files.manifest import Entry, Manifest, checksums, files_of, write_manifest
from megatron_sspo.processes import agree


class CheckpointWriter:
    """The checkpoints of a run. Every rank calls the same methods. A checkpoint gets its final name when complete.

    Args:
        run: the configuration as `config_to_json` returns it, for the manifest.
        in_background: whether a checkpoint is written while training continues (one at a time).
        on_saved: a function called when a checkpoint is complete, with its update, the seconds that the trainer waited
            for it, and the seconds that it took.
    """

    def __init__(
        self,
        folder: Path,
        run: Mapping[str, Any],
        *,
        kept: int,
        in_background: bool,
        on_saved: Callable[[int, float, float], None],
    ) -> None:
        self._folder, self._run, self._kept, self._in_background = folder, run, kept, in_background
        self._on_saved = on_saved
        self._in_progress: _InProgress | None = None
        self.newest: int | None = None  # the update of the newest checkpoint, which may still be incomplete

    def save(self, begin_save: Callable[[Path], AsyncSave], state: State, extra: dict[str, Any]) -> None:
        """Writes a checkpoint of the current state, or starts to. A collective; it first waits for the previous one.

        Args:
            begin_save: a function that begins to write the trainer's tensors into a folder (`Policy.begin_save`).

        Raises:
            UserError: this checkpoint, or the previous one, cannot be written.
        """
        self.wait()
        started = time.perf_counter()
        temporary = agree.run_on_rank_0(lambda: self._begin(state, extra))
        saving = begin_save(temporary / "trainer")
        self.newest = state.update
        self._in_progress = _InProgress(saving, temporary, state.update, started, time.perf_counter() - started)
        if not self._in_background:
            self.wait()

    def poll(self) -> None:
        """Finishes the checkpoint in progress if it is written. A collective; it raises what `save` raises."""
        if self._in_progress is not None and self._in_progress.saving.is_done():
            self._finish(self._in_progress)

    def wait(self) -> None:
        """Waits for the checkpoint in progress and finishes it. A collective; it raises what `save` raises."""
        pending = self._in_progress
        if pending is not None:
            began = time.perf_counter()
            pending.saving.wait()
            pending.waited += time.perf_counter() - began
            self._finish(pending)

    def close(self) -> None:
        """Cancels the save in progress and leaves its temporary folder. Not a collective, so safe after an error."""
        if self._in_progress is not None:
            self._in_progress.saving.cancel()
        self._in_progress = None

    def _begin(self, state: State, extra: dict[str, Any]) -> Path:
        with os_errors_as_user_errors(self._folder):
            temporary = begin_checkpoint(self._folder, state.update)
            describe_checkpoint(temporary, state, extra)
            return temporary

    def _finish(self, pending: "_InProgress") -> None:
        self._in_progress = None
        parts = agree.all_gather_objects(pending.saving.checksums())
        agree.run_on_rank_0(lambda: self._publish(pending.temporary, parts))
        self._on_saved(pending.update, pending.waited, time.perf_counter() - pending.started)

    def _publish(self, temporary: Path, parts: list[dict[str, Entry]]) -> None:
        with os_errors_as_user_errors(self._folder):
            entries = {f"trainer/{name}": entry for part in parts for name, entry in part.items()}
            entries |= checksums(temporary, [name for name in files_of(temporary) if name not in entries])
            write_manifest(temporary, Manifest(files=dict(sorted(entries.items())), run=self._run))
            finish_checkpoint(temporary, kept=self._kept)


@dataclass
class _InProgress:
    saving: AsyncSave
    temporary: Path
    update: int
    started: float
    waited: float  # seconds that the trainer waited
