"""The rows of packed tokens: where sequences lie in a row, and which keys each of its tokens attends to.

A sequence by itself is one section. Sequences that share a prompt are a section of the prompt without its last token,
and a section of each sequence, which begins with that token:

    [x_1 … x_{P−1} | x_P y_1 | x_P y_2 | … | x_P y_G]

So every response token, the first one included, is predicted at a position of its own, and a response without tokens
has a section too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from megatron_sspo.batching.context import gathered_places, num_parts, parts_of, round_up
from megatron_sspo.types import Rollout

Tokens = tuple[int, ...]
Sequences = Sequence[tuple[Tokens, Rollout]]
"""(prompt tokens, rollout) for each sequence."""


class Section(NamedTuple):
    """Neighbouring tokens of a row that follow one another in a sequence, with the padding behind them."""

    start: int
    stop: int
    position: int  # of its first token in the sequence
    prefix: int  # where the shared prompt begins, whose `position` tokens the section attends to; unused if that is 0


class Span(NamedTuple):
    """A part of a sequence, and where it lies in a row."""

    start: int
    position: int  # of its first token in the sequence
    count: int


@dataclass(frozen=True)
class RowPlan:
    """The sections of a row without its last padding, and the spans of each of its sequences, in order."""

    sections: tuple[Section, ...]
    spans: tuple[tuple[Span, ...], ...]

    @property
    def num_tokens(self) -> int:
        """The length of the row, with the sections' padding."""
        return self.sections[-1].stop if self.sections else 0

    def padded(self, num_tokens: int) -> "RowPlan":
        """Returns the row with a last section of padding up to `num_tokens`."""
        if num_tokens == self.num_tokens:
            return self
        return RowPlan((*self.sections, Section(self.num_tokens, num_tokens, 0, 0)), self.spans)


@dataclass(frozen=True)
class Pieces:
    """One rank's queries in pieces, and the keys that each piece attends to.

    The attention of a piece is causal and aligned at its end: the last query attends to all keys of the piece, the
    query before it to all but the last, and so on.
    """

    cu_queries: torch.Tensor  # [pieces + 1] int32: borders of the pieces in the rank's tokens
    cu_keys: torch.Tensor  # [pieces + 1] int32: borders of the pieces in `key_rows`
    key_rows: torch.Tensor  # [K] int64: the keys' places among the tokens of all context-parallel ranks, rank by rank
    max_queries: int  # of a piece
    max_keys: int  # of a piece
    num_pairs: int  # (query, key) pairs of all pieces, including those that the causal mask hides

    @property
    def padding(self) -> float:
        """The pairs that padding adds to a piece on average, if all have the largest numbers of queries and of keys."""
        return self.max_queries * self.max_keys - self.num_pairs / (len(self.cu_queries) - 1)

    def to(self, device: torch.device) -> "Pieces":
        """Returns a copy on `device`."""
        tensors = {name: getattr(self, name).to(device) for name in ("cu_queries", "cu_keys", "key_rows")}
        return replace(self, **tensors)


def plan_row(sequences: Sequences, sharing: Sequence[int], pad_to_multiple_of: int) -> RowPlan:
    """Lays out a row; a sequence without tokens has no section and no span.

    Args:
        sharing: the numbers of neighbours that share a prompt; their sum is the number of sequences.
        pad_to_multiple_of: divisor of the length of every section.
    """
    sections: list[Section] = []
    spans: list[tuple[Span, ...]] = []

    def add(length: int, position: int, prefix: int) -> int:
        start = sections[-1].stop if sections else 0
        if length:
            sections.append(Section(start, start + round_up(length, pad_to_multiple_of), position, prefix))
        return start

    for group in _in_groups(sequences, sharing):
        prompt, _ = group[0]
        shared = max(len(prompt) - 1, 0) if len(group) > 1 else 0
        first = add(shared, 0, 0)
        for _, rollout in group:
            length = len(prompt) - shared + len(rollout.tokens)
            own = Span(add(length, shared, first), shared, length)
            spans.append(tuple(span for span in (Span(first, 0, shared), own) if span.count))
    return RowPlan(tuple(sections), tuple(spans))


def _in_groups(sequences: Sequences, sharing: Sequence[int]) -> Iterator[Sequences]:
    if sum(sharing) != len(sequences):
        raise ValueError(f"{sharing=} is about {sum(sharing)} sequences, and there are {len(sequences)}")
    first = 0
    for count in sharing:
        yield sequences[first : first + count]
        first += count


@dataclass
class Row:
    """A whole packed row of T positions, before it is split over context-parallel ranks."""

    tokens: np.ndarray  # [T] int64
    positions: np.ndarray  # [T] int64
    uses: np.ndarray  # [T] int32: the number of sequences that a token is part of; 0 for padding
    is_response: np.ndarray  # [T] bool: whether the next token is a response token

    @classmethod
    def of(cls, sequences: Sequences, masks: Sequence[np.ndarray | slice], plan: RowPlan) -> "Row":
        """Fills a row; the masks are of each sequence's tokens after the prompt, those that the policy sampled."""
        tokens = np.zeros(plan.num_tokens, dtype=np.int64)
        uses, is_response = np.zeros(len(tokens), dtype=np.int32), np.zeros(len(tokens), dtype=np.bool_)
        for (prompt, rollout), mask, spans in zip(sequences, masks, plan.spans, strict=True):
            for start, position, count in spans:
                uses[start : start + count] += 1
                part = prompt[position : position + count]
                tokens[start : start + len(part)] = part
            if spans:
                own = spans[-1]
                end, response = own.start + own.count, own.start + own.count - len(rollout.tokens)
                tokens[response:end] = rollout.tokens
                # the first response token is predicted from the last position of the prompt
                is_response[response - 1 : end - 1][mask] = True
        positions = np.arange(len(tokens))
        for section in plan.sections:
            positions[section.start : section.stop] += section.position - section.start
        return cls(tokens, positions, uses, is_response)


def pieces_of(sections: Sequence[Section], context_rank: int, context_size: int) -> Pieces:
    """Returns the pieces of a context-parallel rank: the parts of each section that it holds."""
    queries, keys = [0], [0]
    rows = [np.empty(0, dtype=np.int64)]
    for start, stop, position, prefix in sections:
        size = (stop - start) // num_parts(context_size)
        for part in parts_of(context_rank, context_size):
            rows += [np.arange(prefix, prefix + position), np.arange(start, start + (part + 1) * size)]
            queries.append(queries[-1] + size)
            keys.append(keys[-1] + len(rows[-2]) + len(rows[-1]))
    borders = [0, *(section.stop for section in sections)]
    sizes = [(b - a, d - c) for (a, b), (c, d) in zip(pairwise(queries), pairwise(keys), strict=True)]
    return Pieces(
        cu_queries=torch.tensor(queries, dtype=torch.int32),
        cu_keys=torch.tensor(keys, dtype=torch.int32),
        key_rows=gathered_places(borders, context_size)[torch.from_numpy(np.concatenate(rows))],
        max_queries=max(num_queries for num_queries, _ in sizes),
        max_keys=max(num_keys for _, num_keys in sizes),
        num_pairs=sum(num_queries * num_keys for num_queries, num_keys in sizes),
    )
