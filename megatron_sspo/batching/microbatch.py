"""The packed tensors of one microbatch of the pipeline schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

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
    routes: torch.Tensor | None = None  # [T/C, layers, topk] int64: the experts to replay

    def to(self, device: torch.device) -> "Microbatch":
        """Returns a copy on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        movable = {k: v.to(device) for k, v in values.items() if isinstance(v, (torch.Tensor, Segments))}
        return replace(self, **movable)


_NO_RESPONSE = -1  # marks a position whose next token is not a response token


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
        ValueError: a response has no prompt, only some of the sequences have log-probs or routes, or `num_tokens` is
            too small.
    """
    row = _Row()
    for number, (prompt_tokens, rollout) in enumerate(sequences):
        if rollout.tokens and not prompt_tokens:
            raise ValueError(
                f"the prompt of rollout {number} is empty, and a response is predicted from the last token of its "
                "prompt: begin it with a token, that of the beginning of a sequence for example"
            )
        response = [t if own else _NO_RESPONSE for t, own in zip(rollout.tokens, rollout.response_mask(), strict=True)]
        row.add((*prompt_tokens, *rollout.tokens), response, pad_to_multiple_of=_num_parts(context_size))
    multiple = _num_parts(context_size) * tensor_shards
    row_tokens = num_tokens or max(multiple, -(-len(row.tokens) // multiple) * multiple)
    if row_tokens < len(row.tokens):
        raise ValueError(f"{num_tokens=} is less than the {len(row.tokens)} tokens of the padded sequences: raise it")
    row.add((), (), pad_to_multiple_of=1, padding=row_tokens - len(row.tokens))
    rollouts = [rollout for _, rollout in sequences]
    next_tokens = torch.tensor(row.next_tokens)
    counts, order = gather_order(next_tokens != _NO_RESPONSE, row.borders, context_size)
    held = zigzag(row.borders, context_rank, context_size)
    response_rows = (next_tokens[held] != _NO_RESPONSE).nonzero()[:, 0]
    return Microbatch(
        tokens=torch.tensor(row.tokens)[held],
        position_ids=torch.tensor(row.positions)[held],
        cu_seqlens=torch.tensor(row.borders, dtype=torch.int32),
        longest=max(b - a for a, b in pairwise(row.borders)),
        response_rows=response_rows,
        response_tokens=next_tokens[held][response_rows],
        context_counts=tuple(counts),
        context_order=order,
        segments=Segments.from_lengths([rollout.num_response_tokens for rollout in rollouts]),
        advantages=torch.tensor([rollout.advantage for rollout in rollouts]),
        rollout_log_probs=_concatenate([_response_values(rollout, rollout.rollout_log_probs) for rollout in rollouts]),
        old_log_probs=_concatenate_attribute(rollouts, "old_log_probs"),
        reference_log_probs=_concatenate_attribute(rollouts, "reference_log_probs"),
        is_padding=torch.tensor(row.is_padding)[held],
        routes=_routes(sequences, row.borders, router)[held] if router else None,
    )


def _routes(sequences: Sequences, borders: Sequence[int], router: RouterShape) -> torch.Tensor:
    """Returns the experts of each token [T, layers, topk].

    Tokens without recorded routes get the first experts. Their outputs are not used: they are padding, or the last
    token of a response, which an engine samples and never feeds back.
    """
    routes = torch.arange(router.topk).expand(borders[-1], router.num_layers, router.topk).clone()
    for start, (prompt_tokens, rollout) in zip(borders, sequences, strict=False):  # the last border ends the padding
        length = len(prompt_tokens) + len(rollout.tokens)
        if rollout.routes is None:
            raise ValueError("a rollout has no routes to replay")
        found = unpack_routes(rollout.routes, router)
        if len(found) not in (length - 1, length):
            raise ValueError(f"a rollout has the routes of {len(found)} tokens, and {length} tokens")
        routes[start : start + len(found)] = found
    return routes


def _num_parts(context_size: int) -> int:
    """Returns the number of equal parts into which the zigzag split cuts a sequence."""
    return 2 * context_size if context_size > 1 else 1


@dataclass
class _Row:
    """The packed row while it is built."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    is_padding: list[bool] = field(default_factory=list)
    next_tokens: list[int] = field(default_factory=list)  # the response token after each position, or `_NO_RESPONSE`
    borders: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: Tokens, response: Sequence[int], *, pad_to_multiple_of: int, padding: int = 0) -> None:
        """Appends a padded sequence; appends nothing if there are neither tokens nor padding.

        Args:
            response: the tokens after the prompt, with `_NO_RESPONSE` in place of those of an observation.
        """
        length = len(tokens)
        padding += -length % pad_to_multiple_of
        if not length + padding:
            return
        self.tokens += [*tokens, *[0] * padding]
        self.positions += range(length + padding)
        self.is_padding += [False] * length + [True] * padding
        # the first response token is predicted from the last position of the prompt
        before = length - len(response) - 1 if response else length
        self.next_tokens += [_NO_RESPONSE] * before + [*response]
        self.next_tokens += [_NO_RESPONSE] * (length - before - len(response) + padding)
        self.borders.append(len(self.tokens))


def _concatenate_attribute(rollouts: Sequence[Rollout], name: str) -> torch.Tensor | None:
    """Returns the attribute `name` of every response token, or None if no rollout has it."""
    found = [_response_values(r, values) for r in rollouts if (values := getattr(r, name)) is not None]
    if found and len(found) != len(rollouts):
        raise ValueError(f"some rollouts of a batch have {name} and some have none")
    return _concatenate(found) if found or not rollouts else None


def _response_values(rollout: Rollout, values: Sequence[float]) -> Sequence[float]:
    """Selects the values of response tokens from one value per token."""
    return [x for x, own in zip(values, rollout.response_mask(), strict=True) if own]


def _concatenate(values: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor([x for sequence in values for x in sequence], dtype=torch.float32)
