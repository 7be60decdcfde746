"""The ledger of one rank: the memory that it holds, the collectives that it takes part in, and what it computes."""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

HOST = "host "  # what the categories begin with whose memory is the host's
WITH_FROZEN = ", with weights that are not trained"


@dataclass(frozen=True, order=True, kw_only=True)
class Collective:
    """A kind of collective on one process group, in one phase."""

    phase: str  # the part of the update in which it is called: see `Ledger.phase`
    kind: str  # all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, ...
    group: str  # Megatron's description of the process group
    ranks: tuple[int, ...]  # of the group


class Ledger:
    """The memory, collectives, FLOPs and memory traffic of one rank, as operators add to them.

    Attributes:
        category: the category under which storage that is allocated now is counted.
        phase: the part of the update under which collectives, FLOPs and traffic are counted now.
        live: bytes by category that are alive; peak: the same at the moment when the GPU held most since `reset_peak`.
        calls, sent: number of calls and bytes of each collective; the bytes are those of the tensor that this rank
            gives (for all_gather, of the tensor that it receives).
        frozen: storages of weights that are not trained.
        flops: by phase, and those of products with frozen weights again under the phase and `WITH_FROZEN`.
        traffic: bytes that operators other than matrix products read and write, by phase.
    """

    def __init__(self) -> None:
        self.category = "other"
        self.phase = "build"
        self.live: Counter[str] = Counter()
        self.peak: dict[str, int] = {}
        self.calls: Counter[Collective] = Counter()
        self.sent: Counter[Collective] = Counter()
        self.frozen: set[int] = set()
        self.flops: Counter[str] = Counter()
        self.traffic: Counter[str] = Counter()
        self._total = self._peak_total = 0  # bytes of the GPU
        self._category_of: dict[int, str] = {}  # key of each storage that is alive
        self._references: dict[int, weakref.ref] = {}

    def reset_peak(self) -> None:
        """Resets the peak to the current memory."""
        self._peak_total, self.peak = self._total, dict(self.live)

    @contextmanager
    def counted_as(self, category: str) -> Iterator[None]:
        """Counts what is allocated inside under a category."""
        outer, self.category = self.category, category
        try:
            yield
        finally:
            self.category = outer

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Counts collectives, FLOPs and traffic inside under a phase."""
        outer, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = outer

    def allocate(self, tensor: torch.Tensor) -> None:
        """Adds a tensor's storage, unless it is known; it is subtracted when the storage is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._category_of or not (size := storage.nbytes()):
            return

        def free(_: object) -> None:
            self._add(self._category_of.pop(key), -size)
            del self._references[key]

        self._category_of[key] = self.category
        self._references[key] = weakref.ref(storage, free)
        self._add(self.category, size)
        if self._total > self._peak_total:
            self._peak_total, self.peak = self._total, dict(self.live)

    def recount_as(self, category: str, tensor: torch.Tensor) -> None:
        """Moves a tensor's storage to another category."""
        storage = tensor.untyped_storage()
        if (before := self._category_of.get(storage._cdata)) is not None:
            self._add(before, -storage.nbytes())
            self._add(category, storage.nbytes())
            self._category_of[storage._cdata] = category

    def _add(self, category: str, size: int) -> None:
        self.live[category] += size
        if not category.startswith(HOST):
            self._total += size

    def send(self, kind: str, group: str, ranks: tuple[int, ...], num_bytes: int) -> None:
        """Adds a collective."""
        key = Collective(phase=self.phase, kind=kind, group=group, ranks=ranks)
        self.calls[key] += 1
        self.sent[key] += num_bytes
