"""The packed tensors of one microbatch of the pipeline schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import torch

from megatron_sspo.batching.context import gather_order, num_parts, round_up, zigzag
from megatron_sspo.batching.routes import RouterShape, unpack_routes
from megatron_sspo.batching.row import Pieces, Row, RowPlan, Sequences, Span, pieces_of, plan_row
from megatron_sspo.objective import Segments
from megatron_sspo.types import Rollout


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Concatenated sequences, or one context-parallel rank's share of them.

    T = all tokens with padding, C = context-parallel ranks, r = response tokens that this rank holds, R = response
    tokens, S = sequences. Observations between two turns are treated like prompt tokens, not like response tokens.
    Sequences that share a prompt have it in the row once (`batching/row.py`).
    """

    tokens: torch.Tensor  # [T/C] int64
    position_ids: torch.Tensor  # [T/C] int64, from 0 in each sequence
    cu_seqlens: torch.Tensor  # [borders] int32: borders of the row's sections before the split, with that of padding
    longest: int  # tokens of the longest section, before the split
    response_rows: torch.Tensor  # [r] int64: positions in `tokens` whose next token is a response token
    response_tokens: torch.Tensor  # [r] int64: those next tokens
    context_counts: tuple[int, ...]  # r of every context-parallel rank
    context_order: torch.Tensor  # [R] int64: permutation from values gathered rank by rank to row order
    segments: Segments  # the R response tokens by their S sequences
    advantages: torch.Tensor  # [S] float32: Â_i, divided by the number of branches of its episode
    token_advantages: torch.Tensor | None  # [R] float32; None if advantages are per sequence
    rollout_log_probs: torch.Tensor | None  # [R] float32; None if unknown
    old_log_probs: torch.Tensor | None  # [R] float32; None if the policy has not changed since the rollout: ρ = 1
    old_entropy: torch.Tensor | None  # [R] float32; None if the objective does not need it, or ρ = 1
    reference_log_probs: torch.Tensor | None  # [R] float32; None if neither a penalty nor the objective needs it
    teacher_log_probs: torch.Tensor | None  # [R] float32; None without a teacher
    teacher_top_log_probs: torch.Tensor | None  # [R, k] float32: of the teacher's likeliest tokens; None without them
    top_tokens: torch.Tensor | None  # [r, k] int64: these tokens
    uses: torch.Tensor  # [T/C] int32: the number of sequences that a token is part of; 0 for padding
    spans: tuple[tuple[Span, ...], ...]  # of each sequence, in the whole row; a shared prompt is in several
    pieces: Pieces | None = None  # what this rank's tokens attend to; None: each section attends to itself alone
    routes: torch.Tensor | None = None  # [T/C, layers, topk] uint8 or int16: the experts to replay

    @property
    def is_padding(self) -> torch.Tensor:
        """[T/C] bool."""
        return self.uses == 0

    def to(self, device: torch.device) -> "Microbatch":
        """Returns a copy on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        movable = {k: v.to(device) for k, v in values.items() if isinstance(v, (torch.Tensor, Segments, Pieces))}
        return replace(self, **movable)


def make_microbatch(
    sequences: Sequences,
    *,
    sharing: Sequence[int] | None = None,
    tensor_shards: int = 1,
    context_rank: int = 0,
    context_size: int = 1,
    num_tokens: int | None = None,
    router: RouterShape | None = None,
) -> Microbatch:
    """Packs sequences. Without sequences the microbatch is all padding, so that the ranks stay in lockstep.

    Args:
        sequences: prompts and rollouts; all or none have old log-probs, old entropies, log-probs of the reference
            and the teacher, and advantages per token.
        sharing: the numbers of neighbours that share a prompt; None: every sequence has its own.
        tensor_shards: number of equal parts into which sequence parallelism cuts a rank's tokens.
        context_rank: the rank among `context_size` context-parallel ranks whose share is returned.
        num_tokens: length to which the whole row is padded, for schedules and dispatchers that need equal lengths.
        router: shape of the routes; if given, the microbatch has `routes`, and every sequence must have them.

    Raises:
        ValueError: a response has no prompt or is an outline, only some of the sequences have log-probs or routes,
            those of a shared prompt differ, or `num_tokens` is too small.
    """
    _check_sequences(sequences)
    sharing = [1] * len(sequences) if sharing is None else sharing
    plan = plan_row(sequences, sharing, num_parts(context_size))
    multiple = num_parts(context_size) * tensor_shards
    row_tokens = num_tokens or max(multiple, round_up(plan.num_tokens, multiple))
    if row_tokens < plan.num_tokens:
        raise ValueError(f"{num_tokens=} is less than the {plan.num_tokens} tokens of the padded sequences: raise it")
    plan = plan.padded(row_tokens)
    borders = [0, *(section.stop for section in plan.sections)]
    rollouts = [rollout for _, rollout in sequences]
    masks = [rollout.response_mask() if rollout.observed else _ALL for rollout in rollouts]
    row = Row.of(sequences, masks, plan)
    is_response = torch.from_numpy(row.is_response)
    counts, order = gather_order(is_response, borders, context_size)
    held = zigzag(borders, context_rank, context_size)

    def share(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values)[held] if context_size > 1 else torch.from_numpy(values)

    response_rows = share(row.is_response).nonzero()[:, 0]
    top_tokens, top_log_probs = (
        _concatenate_top(rollouts, masks, f"teacher_top_{of}") for of in ("tokens", "log_probs")
    )
    if top_tokens is not None and context_size > 1:
        number = torch.from_numpy(row.is_response).cumsum(0) - 1  # of a response token in the whole row
        top_tokens = top_tokens[number[held[response_rows]]]
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
        # the branches of an episode count as much together as any other episode
        advantages=torch.tensor([rollout.advantage / rollout.branches for rollout in rollouts]),
        rollout_log_probs=_concatenate([rollout.rollout_log_probs for rollout in rollouts], masks),
        token_advantages=_concatenate_attribute(rollouts, masks, "token_advantages") if rollouts else None,
        **{name: _concatenate_attribute(rollouts, masks, name) for name in _MAY_BE_NONE},
        teacher_top_log_probs=top_log_probs,
        top_tokens=top_tokens,
        uses=share(row.uses),
        spans=plan.spans,
        pieces=pieces_of(plan.sections, context_rank, context_size) if max(sharing, default=1) > 1 else None,
        routes=share(_routes(sequences, plan, router)) if router else None,
    )


_MAY_BE_NONE = ("old_log_probs", "old_entropy", "reference_log_probs", "teacher_log_probs")
_ALL = slice(None)  # in place of a mask that is True everywhere
Mask = np.ndarray | slice


def _check_sequences(sequences: Sequences) -> None:
    for number, (prompt_tokens, rollout) in enumerate(sequences):
        if rollout.is_outline:
            raise ValueError(f"rollout {number} is an outline, and its contents are in another process")
        if len(rollout.tokens) and not prompt_tokens:
            raise ValueError(
                f"the prompt of rollout {number} is empty, and a response is predicted from the last token of its "
                "prompt: begin it with a token, that of the beginning of a sequence for example"
            )


def _routes(sequences: Sequences, plan: RowPlan, router: RouterShape) -> np.ndarray:
    """Returns the experts of each token [T, layers, topk].

    Tokens without recorded routes get the first experts. Their outputs are not used: they are padding, or the last
    token of a response, which an engine samples and never feeds back.
    """
    routes = np.empty((plan.num_tokens, router.num_layers, router.topk), dtype=router.dtype)
    routes[:] = np.arange(router.topk)
    filled: set[int] = set()
    for (prompt_tokens, rollout), spans in zip(sequences, plan.spans, strict=True):
        length = len(prompt_tokens) + len(rollout.tokens)
        if rollout.routes is None:
            raise ValueError("a rollout has no routes to replay")
        found = unpack_routes(rollout.routes, router)
        if len(found) not in (length - 1, length):
            raise ValueError(f"a rollout has the routes of {len(found)} tokens, and {length} tokens")
        for start, position, count in spans:
            part = found[position : position + count]
            if start in filled and not np.array_equal(routes[start : start + len(part)], part):
                raise ValueError("sequences that share a prompt have different routes for it")
            filled.add(start)
            routes[start : start + len(part)] = part
    # torch has few operations for uint16; no model has more experts than int16 can number
    return routes if routes.dtype == np.uint8 else routes.view(np.int16)


def _concatenate_attribute(rollouts: Sequence[Rollout], masks: Sequence[Mask], name: str) -> torch.Tensor | None:
    """Returns the attribute `name` of every response token, or None if no rollout has it."""
    found = [values for rollout in rollouts if (values := getattr(rollout, name)) is not None]
    if found and len(found) != len(rollouts):
        raise ValueError(f"some rollouts of a batch have {name} and some have none")
    return _concatenate(found, masks) if found or not rollouts else None


def _concatenate_top(rollouts: Sequence[Rollout], masks: Sequence[Mask], name: str) -> torch.Tensor | None:
    """Returns the k values of every response token, [R, k], or None if the rollouts have none."""
    if any(getattr(rollout, name) is None for rollout in rollouts):
        return None
    own = [
        getattr(rollout, name).reshape(len(rollout.tokens), -1)[mask]
        for rollout, mask in zip(rollouts, masks, strict=True)
        if len(rollout.tokens)
    ]
    values = torch.from_numpy(np.concatenate(own)) if own else torch.empty(0, 0)
    return values.long() if name == "teacher_top_tokens" else values


def _concatenate(values: Sequence[np.ndarray], masks: Sequence[Mask]) -> torch.Tensor:
    """Returns the values of response tokens, from one value per token of each sequence."""
    own = [of_sequence[mask] for of_sequence, mask in zip(values, masks, strict=True)]
    return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.float32), *own]))
