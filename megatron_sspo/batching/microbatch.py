"""The packed tensors of one microbatch of the pipeline schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import torch

from megatron_sspo.batching.context import gather_order, zigzag
from megatron_sspo.batching.routes import RouterShape, unpack_routes
from megatron_sspo.objective import Segments
from megatron_sspo.types import Rollout

Tokens = tuple[int, ...]
Sequences = Sequence[tuple[Tokens, Rollout]]
"""(prompt tokens, rollout) for each sequence."""


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Concatenated sequences, or one context-parallel rank's share of them.

    T = all tokens with padding, C = context-parallel ranks, r = response tokens that this rank holds, R = response
    tokens, S = sequences. Observations between two turns are treated like prompt tokens, not like response tokens.
    """

    tokens: torch.Tensor  # [T/C] int64
    position_ids: torch.Tensor  # [T/C] int64, from 0 in each sequence
    cu_seqlens: torch.Tensor  # [borders] int32, before the split; a padding segment counts as a sequence here
    longest: int  # tokens of the longest segment, before the split
    response_rows: torch.Tensor  # [r] int64: positions in `tokens` whose next token is a response token
    response_tokens: torch.Tensor  # [r] int64: those next tokens
    context_counts: tuple[int, ...]  # r of every context-parallel rank
    context_order: torch.Tensor  # [R] int64: permutation from values gathered rank by rank to row order
    segments: Segments  # the split of the R response tokens into S sequences
    advantages: torch.Tensor  # [S] float32
    rollout_log_probs: torch.Tensor | None  # [R] float32; None if unknown
    old_log_probs: torch.Tensor | None  # [R] float32; None if the policy has not changed since the rollout: ρ = 1
    reference_log_probs: torch.Tensor | None  # [R] float32; None without a KL penalty
    is_padding: torch.Tensor  # [T/C] bool
    routes: torch.Tensor | None = None  # [T/C, layers, topk] uint8 or int16: the experts to replay

    def to(self, device: torch.device) -> "Microbatch":
        """Returns a copy on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        movable = {k: v.to(device) for k, v in values.items() if isinstance(v, (torch.Tensor, Segments))}
        return replace(self, **movable)


def make_microbatch(
    sequences: Sequences,
    *,
    tensor_shards: int = 1,
    context_rank: int = 0,
    context_size: int = 1,
    num_tokens: int | None = None,
    router: RouterShape | None = None,
) -> Microbatch:
    """Packs sequences. Without sequences the microbatch is all padding, so that the ranks stay in lockstep.

    Args:
        sequences: prompts and rollouts; all or none have old log-probs, and all or none have reference log-probs.
        tensor_shards: number of equal parts into which sequence parallelism cuts a rank's tokens.
        context_rank: the rank among `context_size` context-parallel ranks whose share is returned.
        num_tokens: length to which the whole row is padded, for schedules and dispatchers that need equal lengths.
        router: shape of the routes; if given, the microbatch has `routes`, and every sequence must have them.

    Raises:
        ValueError: a response has no prompt or is an outline, only some of the sequences have log-probs or routes, or
            `num_tokens` is too small.
    """
    borders = _borders(sequences, _num_parts(context_size))
    multiple = _num_parts(context_size) * tensor_shards
    row_tokens = num_tokens or max(multiple, -(-borders[-1] // multiple) * multiple)
    if row_tokens < borders[-1]:
        raise ValueError(f"{num_tokens=} is less than the {borders[-1]} tokens of the padded sequences: raise it")
    if row_tokens > borders[-1]:
        borders.append(row_tokens)
    rollouts = [rollout for _, rollout in sequences]
    masks = [rollout.response_mask() if rollout.observed else _ALL for rollout in rollouts]
    row = _Row.of(sequences, masks, borders)
    is_response = torch.from_numpy(row.is_response)
    counts, order = gather_order(is_response, borders, context_size)
    held = zigzag(borders, context_rank, context_size)

    def share(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values)[held] if context_size > 1 else torch.from_numpy(values)

    response_rows = share(row.is_response).nonzero()[:, 0]
    # the token after the last one of a part is another rank's, so next tokens are looked up in the whole row
    return Microbatch(
        tokens=share(row.tokens),
        position_ids=share(row.positions),
        cu_seqlens=torch.tensor(borders, dtype=torch.int32),
        longest=max(b - a for a, b in pairwise(borders)),
        response_rows=response_rows,
        response_tokens=torch.from_numpy(row.tokens)[held[response_rows] + 1],
        context_counts=tuple(counts),
        context_order=order,
        segments=Segments.from_lengths([rollout.num_response_tokens for rollout in rollouts]),
        advantages=torch.tensor([rollout.advantage for rollout in rollouts]),
        rollout_log_probs=_concatenate([rollout.rollout_log_probs for rollout in rollouts], masks),
        old_log_probs=_concatenate_attribute(rollouts, masks, "old_log_probs"),
        reference_log_probs=_concatenate_attribute(rollouts, masks, "reference_log_probs"),
        is_padding=share(row.is_padding),
        routes=share(_routes(sequences, borders, router)) if router else None,
    )


_ALL = slice(None)  # in place of a mask that is True everywhere
Mask = np.ndarray | slice


def _borders(sequences: Sequences, pad_to_multiple_of: int) -> list[int]:
    """Returns the positions where sequences begin and end; a sequence without tokens has none."""
    borders = [0]
    for number, (prompt_tokens, rollout) in enumerate(sequences):
        if rollout.is_outline:
            raise ValueError(f"rollout {number} is an outline, and its contents are in another process")
        if len(rollout.tokens) and not prompt_tokens:
            raise ValueError(
                f"the prompt of rollout {number} is empty, and a response is predicted from the last token of its "
                "prompt: begin it with a token, that of the beginning of a sequence for example"
            )
        length = len(prompt_tokens) + len(rollout.tokens)
        if length:
            borders.append(borders[-1] + length + -length % pad_to_multiple_of)
    return borders


@dataclass
class _Row:
    """A whole packed row of T positions, before it is split over context-parallel ranks."""

    tokens: np.ndarray  # [T] int64
    positions: np.ndarray  # [T] int64
    is_padding: np.ndarray  # [T] bool
    is_response: np.ndarray  # [T] bool: whether the next token is a response token

    @classmethod
    def of(cls, sequences: Sequences, masks: Sequence[Mask], borders: Sequence[int]) -> "_Row":
        tokens = np.zeros(borders[-1], dtype=np.int64)
        is_padding, is_response = np.ones(borders[-1], dtype=np.bool_), np.zeros(borders[-1], dtype=np.bool_)
        starts = iter(borders)
        for (prompt_tokens, rollout), mask in zip(sequences, masks, strict=True):
            if not prompt_tokens:
                continue
            start = next(starts)
            response, end = start + len(prompt_tokens), start + len(prompt_tokens) + len(rollout.tokens)
            tokens[start:response] = prompt_tokens
            tokens[response:end] = rollout.tokens
            is_padding[start:end] = False
            # the first response token is predicted from the last position of the prompt
            is_response[response - 1 : end - 1][mask] = True
        positions = np.arange(borders[-1])
        for start, end in pairwise(borders):
            positions[start:end] -= start
        return cls(tokens, positions, is_padding, is_response)


def _routes(sequences: Sequences, borders: Sequence[int], router: RouterShape) -> np.ndarray:
    """Returns the experts of each token [T, layers, topk].

    Tokens without recorded routes get the first experts. Their outputs are not used: they are padding, or the last
    token of a response, which an engine samples and never feeds back.
    """
    routes = np.empty((borders[-1], router.num_layers, router.topk), dtype=router.dtype)
    beyond = 0
    for start, (prompt_tokens, rollout) in zip(borders, sequences, strict=False):  # the last border ends the padding
        length = len(prompt_tokens) + len(rollout.tokens)
        if rollout.routes is None:
            raise ValueError("a rollout has no routes to replay")
        found = unpack_routes(rollout.routes, router)
        if len(found) not in (length - 1, length):
            raise ValueError(f"a rollout has the routes of {len(found)} tokens, and {length} tokens")
        routes[beyond:start] = np.arange(router.topk)
        routes[start : start + len(found)] = found
        beyond = start + len(found)
    routes[beyond:] = np.arange(router.topk)
    # torch has few operations for uint16; no model has more experts than int16 can number
    return routes if routes.dtype == np.uint8 else routes.view(np.int16)


def _num_parts(context_size: int) -> int:
    """Returns the number of equal parts into which the zigzag split cuts a sequence."""
    return 2 * context_size if context_size > 1 else 1


def _concatenate_attribute(rollouts: Sequence[Rollout], masks: Sequence[Mask], name: str) -> torch.Tensor | None:
    """Returns the attribute `name` of every response token, or None if no rollout has it."""
    found = [values for rollout in rollouts if (values := getattr(rollout, name)) is not None]
    if found and len(found) != len(rollouts):
        raise ValueError(f"some rollouts of a batch have {name} and some have none")
    return _concatenate(found, masks) if found or not rollouts else None


def _concatenate(values: Sequence[np.ndarray], masks: Sequence[Mask]) -> torch.Tensor:
    """Returns the values of response tokens, from one value per token of each sequence."""
    own = [of_sequence[mask] for of_sequence, mask in zip(values, masks, strict=True)]
    return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.float32), *own]))
