"""The results of the rehearsal of one rank, as plain values that are written as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from megatron_sspo.rehearsal.books import Books, Collective
from megatron_sspo.rehearsal.sync import Sent


@dataclass(frozen=True, kw_only=True)
class Traffic(Collective):
    """A kind of collective, with what a rank sends by it."""

    calls: int
    bytes: int  # see `Books.sent`


@dataclass(frozen=True, kw_only=True)
class Account:
    """The books of one rank after a rehearsal.

    Attributes:
        stage: the rank's pipeline stage.
        resident: bytes by category between two updates.
        peaks: by part of a cycle ("old_log_probs", "update", "step", "gather", "checkpoint"): bytes by category at the
            moment when the sum is largest. A checkpoint's are in the memory of the host.
        written: bytes of a checkpoint that the rank writes.
        sent_to_servers: (rank, bytes of weights that it sends to each server), of all ranks that do.
        collectives: everything that the rank sent.
        flops, memory_traffic: by phase; the traffic is in bytes.
        seconds: the duration of the rehearsal, by part.
        process_memory: the largest resident memory of the rehearsal's own process.
    """

    rank: int
    stage: int
    resident: Mapping[str, int]
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

    def to_json(self) -> dict[str, Any]:
        """Returns the account as values that JSON has."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Account":
        """Returns the account that `to_json` wrote."""
        collectives = tuple(Traffic(**{**row, "ranks": tuple(row["ranks"])}) for row in values["collectives"])
        sent = tuple((rank, size) for rank, size in values["sent_to_servers"])
        return Account(**{**values, "collectives": collectives, "sent_to_servers": sent})


def collectives_of(books: Books) -> tuple[Traffic, ...]:
    """Returns the collectives of the books, in a fixed order."""
    return tuple(Traffic(**vars(key), calls=books.calls[key], bytes=books.sent[key]) for key in sorted(books.calls))


def without_zeros(live: Mapping[str, int]) -> dict[str, int]:
    """Returns the categories that hold anything."""
    return {category: size for category, size in sorted(live.items()) if size}
