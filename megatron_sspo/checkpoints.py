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
        saving = None
        if self._in_background:
            saving = policy.begin_save(temporary / "trainer")
        else:
            policy.save(temporary / "trainer")
        if self._is_main:
            describe_checkpoint(temporary, state, extra)
        self.newest = state.update
        self._under_way = _UnderWay(saving, temporary, state.update, started, time.perf_counter() - started)
        if saving is None:
            self.wait()

    def look(self) -> None:
        """Finishes the one under way where it is written. A collective, which raises what `save` raises."""
        under_way = self._under_way
        if under_way is not None and (under_way.saving is None or under_way.saving.is_done()):
            self._finish(under_way)

    def wait(self) -> None:
        """Finishes the one under way. A collective, which raises what `save` raises."""
        if self._under_way is not None:
            started = time.perf_counter()
            if self._under_way.saving is not None:
                self._under_way.saving.wait()
            self._under_way.waited += time.perf_counter() - started
            self._finish(self._under_way)

    def close(self) -> None:
        """Gives up the one under way, which keeps the name of an incomplete one. No collective: a run ends so, too."""
        if self._under_way is not None and self._under_way.saving is not None:
            self._under_way.saving.cancel()
        self._under_way = None

    def _finish(self, under_way: "_UnderWay") -> None:
        self._under_way = None
        if self._is_main:
            finish_checkpoint(under_way.temporary, kept=self._kept)
        dist.barrier()
        self._tell(under_way.update, under_way.waited, time.perf_counter() - under_way.started)


@dataclass
class _UnderWay:
    saving: Saving | None  # None: it is written
    temporary: Path
    update: int
    started: float
    waited: float
