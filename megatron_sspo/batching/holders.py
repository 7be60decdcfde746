"""The ranks that hold the rollouts of a batch.

Rank 0 holds every rollout whole: it drives the servers, writes checkpoints and shows rollouts. Any other rank holds the
rollouts that its data-parallel rank computes, and an outline of each of the others. Outlines are enough to pack and to
count as every rank does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatron_sspo.processes import agree
from megatron_sspo.processes.exchange import exchange
from megatron_sspo.types import Batch, Rollout, RolloutGroup, rollouts_of

Assignment = Sequence[Sequence[Sequence[int]]]
"""[data-parallel rank][microbatch] -> indices of sequences, as `pack` returns it."""


@dataclass(frozen=True)
class Holders:
    """The ranks that compute the sequences of each data-parallel rank."""

    rank: int
    data_rank: int
    ranks: Sequence[Sequence[int]]  # of each data-parallel rank
    sources: Sequence[int]  # of each data-parallel rank, the rank whose results count

    @classmethod
    def agree(cls, rank: int, data_rank: int, *, is_source: bool) -> "Holders":
        """Collects the places of all ranks. A collective."""
        places = agree.all_gather_objects((data_rank, is_source))
        count = 1 + max(of for of, _ in places)
        return cls(
            rank,
            data_rank,
            [[other for other, (of, _) in enumerate(places) if of == wanted] for wanted in range(count)],
            [places.index((wanted, True)) for wanted in range(count)],
        )

    def scatter(self, batch: Batch, assignment: Assignment) -> list[RolloutGroup]:
        """Sends from rank 0 the rollouts that each rank computes, without their texts. A collective."""
        rollouts = rollouts_of(batch)

        def parcels() -> Iterator[tuple[list[int], dict[int, Rollout]]]:
            for ranks, members in zip(self.ranks, assignment, strict=True):
                yield (
                    [rank for rank in ranks if rank],
                    {n: replace(rollouts[n], text="", transcript="") for part in members for n in part},
                )

        if self.rank == 0:
            exchange(parcels(), [])
            return list(batch)
        (mine,) = exchange([], [0])
        return with_rollouts(batch, [mine.get(index, rollout) for index, rollout in enumerate(rollouts)])

    def spread(self, mine: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Returns the values of the sequences that this rank computes, by index; on rank 0 of all. A collective.

        Only the source's are used, so that ranks that compute the same sequences have the same bits.
        """
        source = self.sources[self.data_rank]
        receivers = self._others_who_hold() if self.rank == source else []
        parts = self._trade(mine, receivers, self.sources if self.rank == 0 else [source])
        return {index: values for part in parts for index, values in part.items()}

    def collect(self, mine: Any) -> list[Any]:
        """Returns on rank 0 the value of each data-parallel rank's source, and nothing elsewhere. A collective."""
        is_source = self.rank == self.sources[self.data_rank]
        return self._trade(mine, [0] if self.rank and is_source else [], [] if self.rank else self.sources)

    def gather(self, mine: Any) -> list[Any]:
        """Returns the values of all ranks that compute the same sequences, in order; on rank 0 of all. A collective."""
        senders = sorted(n for of in self.ranks for n in of) if self.rank == 0 else self.ranks[self.data_rank]
        return self._trade(mine, self._others_who_hold(), senders)

    def _trade(self, mine: Any, receivers: list[int], senders: Sequence[int]) -> list[Any]:
        """Sends this rank's value to others, and returns the values of the senders, of which it may be one."""
        others = [rank for rank in senders if rank != self.rank]
        found = {self.rank: mine, **dict(zip(others, exchange([(receivers, mine)], others), strict=True))}
        return [found[rank] for rank in senders]

    def _others_who_hold(self) -> list[int]:
        return sorted({0, *self.ranks[self.data_rank]} - {self.rank})


def outline(batch: Batch) -> list[RolloutGroup]:
    """Returns the outlines of all rollouts."""
    return [replace(group, rollouts=[rollout.outline() for rollout in group.rollouts]) for group in batch]


def with_field(batch: Batch, name: str, values: Mapping[int, np.ndarray], lengths: Sequence[int]) -> list[RolloutGroup]:
    """Returns the batch with one field of every rollout replaced; rollouts without a value become outlines.

    The values are arrays by the index of the rollout in the batch; the lengths those of every rollout's array.
    """
    rollouts = rollouts_of(batch)
    changed = [
        replace(rollout, **{name: values[index]}) if index in values else rollout.outline(**{name: lengths[index]})
        for index, rollout in enumerate(rollouts)
    ]
    return with_rollouts(batch, changed)


def with_engine_as_old(batch: Batch) -> list[RolloutGroup]:
    """Returns the batch with the engine's log-probs in the place of log π_old."""
    rollouts = rollouts_of(batch)
    values = {index: r.rollout_log_probs for index, r in enumerate(rollouts) if not r.is_outline}
    return with_field(batch, "old_log_probs", values, [len(r.tokens) for r in rollouts])


def without_old(batch: Batch) -> list[RolloutGroup]:
    """Returns the batch without log π_old, for which an update then takes π_θ itself."""
    return with_rollouts(batch, [replace(rollout, old_log_probs=None) for rollout in rollouts_of(batch)])


def with_rollouts(batch: Batch, rollouts: Sequence[Rollout]) -> list[RolloutGroup]:
    """Returns the batch with all of its rollouts replaced, in order."""
    order = iter(rollouts)
    return [replace(group, rollouts=[next(order) for _ in group.rollouts]) for group in batch]
