"""The results of the rehearsal of one rank, which are written as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from sspo_rehearsal.ledger import HOST, Collective, Ledger

Sent = tuple[tuple[int, int], ...]
"""(rank, bytes of weights that it sends to each server), of the ranks that send."""


@dataclass(frozen=True, kw_only=True)
class Traffic(Collective):
    """A kind of collective, with what a rank sends by it."""

    calls: int
    bytes: int  # see `Ledger.sent`


@dataclass(frozen=True, kw_only=True)
class Account:
    """The ledger of one rank after a rehearsal.

    Attributes:
        stage: the rank's pipeline stage.
        resident: bytes by category between two updates; host: those of the optimizer in the host's memory.
        peaks: by part of a cycle ("old_log_probs", "update", "step", "gather", "checkpoint"): bytes by category at the
            moment when the sum is largest. A checkpoint's are in the memory of the host.
        written: bytes of a checkpoint that the rank writes.
        collectives: everything that the rank sent.
        flops, memory_traffic: by phase; the traffic is in bytes.
        seconds: the duration of the rehearsal, by part.
        process_memory: the largest resident memory of the rehearsal's own process.
    """

    rank: int
    stage: int
    resident: Mapping[str, int]
    host: Mapping[str, int]
    peaks: Mapping[str, Mapping[str, int]]
    written: int
    sent_to_servers: Sent
    collectives: tuple[Traffic, ...]
    flops: Mapping[str, int]
    memory_traffic: Mapping[str, int]
    seconds: Mapping[str, float]
    process_memory: int

    @property
    def peak(self) -> Mapping[str, int]:
        """Bytes by category at the largest of all peaks in the GPU's memory."""
        found = [categories for part, categories in self.peaks.items() if part != "checkpoint"]
        return max(found, key=lambda categories: sum(categories.values()))


def collectives_of(ledger: Ledger) -> tuple[Traffic, ...]:
    """Returns the collectives of the ledger, in a fixed order."""
    return tuple(Traffic(**vars(key), calls=ledger.calls[key], bytes=ledger.sent[key]) for key in sorted(ledger.calls))


def on_gpu(live: Mapping[str, int]) -> dict[str, int]:
    """Returns the categories of the GPU's memory that hold anything."""
    return {category: size for category, size in sorted(live.items()) if size and not category.startswith(HOST)}


def on_host(live: Mapping[str, int]) -> dict[str, int]:
    """Returns the categories of the host's memory, without what they begin with."""
    return {name.removeprefix(HOST): size for name, size in sorted(live.items()) if name.startswith(HOST)}
