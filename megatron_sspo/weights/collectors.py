"""Chooses the ranks that put whole weights together, the weights that each of them gets, and the order."""

import math
from collections.abc import Mapping, Sequence

from megatron_sspo.weights.pieces import Piece, hf_shapes

MAX_COLLECTORS = 8
"""Collectors at most: each sends in a process group of its own, whose communicator takes memory of every GPU in it."""

Row = Sequence[Piece]
"""The pieces of a row of the weight table, or of all rows of a fused tensor."""


def assign(pieces: Sequence[Row], *, max_collectors: int) -> dict[int, list[Row]]:
    """Returns collector -> its rows, every row once, in the table's order.

    The ranks that own the first shard of any row are one for each pipeline stage and expert-parallel rank. If there are
    more than `max_collectors` of them, neighbours share a collector. A row goes to a collector that holds a shard of
    it, so that as little as possible is sent; if several do, to the one with the fewest elements so far.
    """
    homes = sorted({row[0].owner for row in pieces})
    width = -(-len(homes) // max_collectors)
    collector_of = {home: homes[number - number % width] for number, home in enumerate(homes)}
    collectors = set(collector_of.values())
    candidates = [
        sorted(collectors & {rank for piece in row for rank in piece.holders}) or [collector_of[row[0].owner]]
        for row in pieces
    ]
    chosen: dict[int, int] = {}
    filled = dict.fromkeys(sorted(collectors), 0)
    for number in sorted(range(len(pieces)), key=lambda n: (len(candidates[n]) > 1, -row_size(pieces[n]))):
        chosen[number] = min(candidates[number], key=lambda rank: (filled[rank], rank))
        filled[chosen[number]] += row_size(pieces[number])
    return {rank: [row for number, row in enumerate(pieces) if chosen[number] == rank] for rank in filled}


def send_rounds(assigned: Mapping[int, Sequence[Row]], *, elements: int) -> list[tuple[int, list[Row]]]:
    """Returns (collector, some rows that it puts together at once); collectors take turns.

    Rows come in lists of at least `elements`, except for the last of a collector. Every rank walks this list in order
    and does its part of each round, so that ranks cannot deadlock.
    """
    rounds = [
        (turn, collector, some)
        for collector, rows in assigned.items()
        for turn, some in enumerate(split(rows, elements))
    ]
    return [(collector, some) for _, collector, some in sorted(rounds, key=lambda each: each[:2])]


def split(rows: Sequence[Row], elements: int) -> list[list[Row]]:
    """Returns the rows in lists of at least `elements`, except for the last."""
    found: list[list[Row]] = []
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


def row_size(row: Row) -> int:
    """Returns the number of elements of a row as Hugging Face has it."""
    return sum(math.prod(shape) for shape in hf_shapes(row).values())
