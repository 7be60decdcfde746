"""Chooses the ranks that put whole weights together, the weights that each of them gets, and the order."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatron_sspo.weights.pieces import Piece

MAX_COLLECTORS = 8
"""The largest number of collectors. Each sends to servers in a process group of its own, whose communicator takes
memory of every GPU in it."""


@dataclass(frozen=True)
class Lot:
    """Some rows that one rank, the collector, puts together at once: the pieces of each row."""

    collector: int
    rows: tuple[tuple[Piece, ...], ...]


def assign(pieces: Sequence[Sequence[Piece]], *, max_collectors: int) -> dict[int, list[Sequence[Piece]]]:
    """Returns collector -> its rows, every row once, in the table's order.

    The ranks that own the first shard of any row are one for each pipeline stage and expert-parallel rank. If there are
    more than `max_collectors` of them, neighbours share a collector. A row goes to a collector that holds a shard of
    it, so that as little as possible is sent; if several do, to the one with the fewest elements so far.

    Args:
        max_collectors: the largest number of collectors.
    """
    homes = sorted({row[0].owner for row in pieces})
    width = -(-len(homes) // max_collectors)
    collector_of = {home: homes[number - number % width] for number, home in enumerate(homes)}
    collectors = set(collector_of.values())
    chosen: dict[int, int] = {}
    filled = dict.fromkeys(collectors, 0)

    def choose(number: int, candidates: Sequence[int]) -> None:
        chosen[number] = min(candidates, key=lambda rank: (filled[rank], rank))
        filled[chosen[number]] += row_size(pieces[number])

    free: dict[int, list[int]] = {}
    for number, row in enumerate(pieces):
        candidates = sorted(collectors & {rank for piece in row for rank in piece.holders})
        if len(candidates) > 1:
            free[number] = candidates
        else:
            choose(number, candidates or [collector_of[row[0].owner]])
    for number in sorted(free, key=lambda number: -row_size(pieces[number])):
        choose(number, free[number])
    assigned: dict[int, list[Sequence[Piece]]] = {rank: [] for rank in sorted(collectors)}
    for number, row in enumerate(pieces):
        assigned[chosen[number]].append(row)
    return assigned


def lots(assigned: Mapping[int, Sequence[Sequence[Piece]]], *, elements: int) -> list[Lot]:
    """Returns the rows in lots of at least `elements`, except for the last of a collector; collectors take turns.

    Every rank walks this list in order and does its part of each lot, so that ranks cannot deadlock.
    """
    found: list[tuple[int, Lot]] = []
    for collector, rows in assigned.items():
        found += [(turn, Lot(collector, tuple(map(tuple, some)))) for turn, some in enumerate(split(rows, elements))]
    return [lot for _, lot in sorted(found, key=lambda pair: (pair[0], pair[1].collector))]


def split(rows: Sequence[Sequence[Piece]], elements: int) -> list[list[Sequence[Piece]]]:
    """Returns the rows in lists of at least `elements`, except for the last."""
    found: list[list[Sequence[Piece]]] = []
    filled = elements
    for row in rows:
        if filled >= elements:
            found.append([])
            filled = 0
        found[-1].append(row)
        filled += row_size(row)
    return found


def source(piece: Piece, collector: int) -> int:
    """Returns the rank that sends a piece to a collector: itself, or the nearest rank that holds the piece."""
    return min(piece.holders, key=lambda rank: (abs(rank - collector), rank))


def row_size(row: Sequence[Piece]) -> int:
    """Returns the number of elements of a row as Hugging Face has it."""
    return sum(math.prod(shape) for shape in row[0].row.hf_shapes)
