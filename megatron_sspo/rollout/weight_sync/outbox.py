"""Buckets of weights on their way from one trainer process to the servers."""

import contextlib
import queue
import threading
from collections.abc import Sequence
from typing import Any

import torch

from megatron_sspo.rollout.weight_sync import group as groups
from megatron_sspo.rollout.weight_sync.bounded import AbandonedWork, run_bounded
from megatron_sspo.rollout.weight_sync.session import NamedTensor
from megatron_sspo.rollout.weight_sync.signals import Signals

_TURN_SECONDS = 900.0  # limit on the wait for a turn: longer than rank 0 waits for the answers to another bucket
_BROADCAST_SECONDS = 120.0  # limit for one bucket; the first one also connects the GPUs


class Outbox:
    """Broadcasts buckets in a thread of its own, each at its turn, so that the next one can be gathered meanwhile.

    If a broadcast fails or the sync is stopped, the outbox stops the sync on all ranks and drops the other buckets.

    Args:
        group: the process group with the servers.
    """

    def __init__(self, group: Any, signals: Signals) -> None:
        self._group, self._signals = group, signals
        self.failure: BaseException | None = None  # of the broadcast that failed
        self._buckets: queue.Queue[tuple[int, torch.Tensor, Any] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="weight-outbox", daemon=True)
        self._thread.start()

    def put(self, turn: int, tensors: Sequence[NamedTensor]) -> None:
        """Hands over a bucket, as a copy without gaps. Waits while two earlier ones have not been sent."""
        flat = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for _, tensor in tensors]).to(groups.device())
        ready = None
        if flat.is_cuda:
            ready = torch.cuda.Event()
            ready.record()
        self._buckets.put((turn, flat, ready))

    def close(self) -> bool:
        """Waits until all buckets are sent or dropped, and returns whether all were sent.

        Raises:
            BaseException: a broadcast failed for another reason than a lost connection.
        """
        self._buckets.put(None)
        self._thread.join()
        if self.failure is not None and not isinstance(self.failure, (AbandonedWork, RuntimeError)):
            raise self.failure
        return self.failure is None

    def _run(self) -> None:
        while (bucket := self._buckets.get()) is not None:
            if self.failure is None:
                try:
                    self._send(*bucket)
                except BaseException as error:  # a server has ended or hangs; its request has an error, too
                    self.failure = error
                    with contextlib.suppress(RuntimeError):  # the store ends with rank 0, and so does the run
                        self._signals.stop()

    def _send(self, turn: int, flat: torch.Tensor, ready: Any) -> None:
        self._signals.await_turn(turn, seconds=_TURN_SECONDS)
        group = self._group
        run_bounded(
            lambda: groups.broadcast(flat, ready, group),
            has_failed=self._signals.is_stopped,
            seconds=_BROADCAST_SECONDS,
        )
