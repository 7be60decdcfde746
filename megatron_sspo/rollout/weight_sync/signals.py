"""Messages among the trainer's ranks while they send weights, outside of collectives: turns, and a stop."""

import time
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from megatron_sspo.rollout.weight_sync.bounded import AbandonedWork

_POLL_SECONDS = 0.002
_PREFIX = "megatron_sspo/weights"


class Signals:
    """The turns of one sync, which rank 0 gives, and whether a rank has stopped it.

    Both are counters of a store that all ranks see and that outlives a sync, so a sync begins with their values.

    Args:
        turns, stops: the values when the sync began, which all ranks have agreed on; by default the present values.
    """

    def __init__(self, turns: int | None = None, stops: int | None = None) -> None:
        self._store = dist.PrefixStore(_PREFIX, _own_connection())  # pyright: ignore[reportPrivateImportUsage]
        self.turns = self._store.add("turns", 0) if turns is None else turns
        self.stops = self._store.add("stops", 0) if stops is None else stops

    def give_turn(self) -> None:
        """Gives the next turn; the turns of a sync count from 0."""
        self._store.add("turns", 1)

    def await_turn(self, number: int, *, seconds: float) -> None:
        """Waits until a turn is given. Raises AbandonedWork if the sync was stopped, or the time is over."""
        deadline = time.monotonic() + seconds
        while self._store.add("turns", 0) - self.turns <= number:
            if self.is_stopped():
                raise AbandonedWork("the sync was stopped")
            if time.monotonic() > deadline:
                raise AbandonedWork(f"the turn was not given within {seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stops the sync on all ranks."""
        self._store.add("stops", 1)

    def is_stopped(self) -> bool:
        """Returns whether a rank has stopped the sync."""
        return self._store.add("stops", 0) > self.stops


def _own_connection() -> Any:
    """Returns the store of the process group over a connection of its own, which torch before 2.8 cannot make.

    The connection of the process group is taken while NCCL makes a communicator for the main thread, which waits for
    the other rank. That rank may need a turn first, and the turn would wait for the connection.
    """
    if not dist.is_initialized():
        return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    store: Any = distributed_c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else store
