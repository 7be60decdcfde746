"""When and how a run's checkpoints are written: while the trainer waits, or while it goes on."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megatron_sspo.policy.policy import Policy
from megatron_sspo.policy.saving import Saving
from megatron_sspo.state import State, begin_checkpoint, describe_checkpoint, finish_checkpoint


class Checkpoints:
    """The checkpoints of a run; on every process, which all call the same. None has its name before it is whole.

    Args:
        folder: they are in there.
        kept: the newest, of which so many stay.
        in_background: a checkpoint is written while the trainer goes on; one at a time.
        tell: is told when one is whole: its update, the seconds that the trainer has waited for it, and those it took.

    Attributes:
        newest: the update of the newest one, which may not be whole yet; None where there is none.
    """

    def __init__(
        self, folder: Path, *, kept: int, in_background: bool, tell: Callable[[int, float, float], None]
    ) -> None:
        self._folder, self._kept, self._in_background, self._tell = folder, kept, in_background, tell
        self._is_main = dist.get_rank() == 0
        self._under_way: _UnderWay | None = None
        self.newest: int | None = None

    def save(self, policy: Policy, state: State, extra: dict[str, Any]) -> None:
        """Writes one of this moment, or begins to. A collective; it waits for the one before.

        Raises:
            UserError: it, or the one before it, cannot be written.
        """
        self.wait()
        started = time.perf_counter()
        name = [str(begin_checkpoint(self._folder, state.update)) if self._is_main else ""]
        dist.broadcast_object_list(name, src=0)
        temporary = Path(name[0])
        save = policy.begin_save if self._in_background else policy.save
        saving = save(temporary / "trainer")
        if self._is_main:
            describe_checkpoint(temporary, state, extra)
        self.newest = state.update
        waited = time.perf_counter() - started
        if saving is None:
            self._finish(temporary, state.update, started, waited)
        else:
            self._under_way = _UnderWay(saving, temporary, state.update, started, waited)

    def look(self) -> None:
        """Finishes the one under way where it is written. A collective, which raises what `save` raises."""
        if self._under_way is not None and self._under_way.saving.is_done():
            self._finish_under_way(self._under_way, 0.0)

    def wait(self) -> None:
        """Finishes the one under way. A collective, which raises what `save` raises."""
        if self._under_way is not None:
            began = time.perf_counter()
            self._under_way.saving.wait()
            self._finish_under_way(self._under_way, time.perf_counter() - began)

    def close(self) -> None:
        """Gives up the one under way, which keeps the name of an incomplete one. No collective: a run ends so, too."""
        if self._under_way is not None:
            self._under_way.saving.cancel()
        self._under_way = None

    def _finish_under_way(self, one: "_UnderWay", waited: float) -> None:
        self._under_way = None
        self._finish(one.temporary, one.update, one.started, one.waited + waited)

    def _finish(self, temporary: Path, update: int, started: float, waited: float) -> None:
        if self._is_main:
            finish_checkpoint(temporary, kept=self._kept)
        dist.barrier()
        self._tell(update, waited, time.perf_counter() - started)


@dataclass(frozen=True)
class _UnderWay:
    saving: Saving
    temporary: Path
    update: int
    started: float
    waited: float  # for its begin
