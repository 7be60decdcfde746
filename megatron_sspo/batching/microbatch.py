"""The packed tensors of one forward pass of the pipeline schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import torch

from megatron_sspo.batching.context import gather_order, zigzag
from megatron_sspo.objective import Segments
from megatron_sspo.routes import RouterShape, unpack_routes
from megatron_sspo.types import Rollout

Tokens = tuple[int, ...]
Sequences = Sequence[tuple[Tokens, Rollout]]
"""(prompt tokens, rollout) for each sequence."""


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Sequences one behind the other, or one context-parallel rank's share of them.

    T = all tokens with padding, C = context-parallel ranks, r = response tokens that this rank holds, R = response
    tokens, S = sequences. What an environment wrote between two turns is read like a prompt, and is no response.
    """

    tokens: torch.Tensor  # [T/C] int64
    position_ids: torch.Tensor  # [T/C] int64, from 0 in each sequence
    cu_seqlens: torch.Tensor  # [borders] int32, before the split; a segment of padding counts as a sequence here
    longest: int  # tokens of the longest segment, before the split
    response_rows: torch.Tensor  # [r] int64: where in `tokens` the next token of the sequence is a response token
    response_tokens: torch.Tensor  # [r] int64: those next tokens
    context_counts: tuple[int, ...]  # r of every context-parallel rank
    context_order: torch.Tensor  # [R] int64: from the ranks' response tokens, one rank after the other, to the row's
    segments: Segments  # of the R response tokens into S sequences
    advantages: torch.Tensor  # [S] float32
    rollout_log_probs: torch.Tensor | None  # [R] float32; None where the engine's are not known
    old_log_probs: torch.Tensor | None  # [R] float32; None where the policy has not moved since the rollout: ρ = 1
    reference_log_probs: torch.Tensor | None  # [R] float32; None where no KL penalty is taken
    is_padding: torch.Tensor  # [T/C] bool
    routes: torch.Tensor | None = None  # [T/C, layers, topk] int64: the experts to replay

    def to(self, device: torch.device) -> "Microbatch":
        """A copy on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        movable = {k: v.to(device) for k, v in values.items() if isinstance(v, (torch.Tensor, Segments))}
        return replace(self, **movable)


_NO_RESPONSE = -1  # as the next token of a position


def make_microbatch(
    sequences: Sequences,
    *,
    tensor_shards: int = 1,
    context_rank: int = 0,
    context_size: int = 1,
    num_tokens: int | None = None,
    router: RouterShape | None = None,
) -> Microbatch:
    """Packs sequences; none at all gives a microbatch of padding that keeps the ranks in lockstep.

    Args:
        sequences: with old log-probs on all of them or on none; reference log-probs likewise.
        tensor_shards: into how many equal parts sequence parallelism cuts a rank's tokens.
        context_rank: whose share this is, of `context_size`.
        num_tokens: that the whole row is padded to, where a schedule or dispatcher wants rows of one length.
        router: gives the microbatch the routes of its sequences, which all have to have them.

    Raises:
        ValueError: a response without a prompt; log-probs or routes on some of the sequences only.
    """
    row = _Row()
    for number, (prompt_tokens, rollout) in enumerate(sequences):
        if rollout.tokens and not prompt_tokens:
            raise ValueError(
                f"the prompt of rollout {number} is empty, and a response is predicted from the last token of its "
                "prompt: begin it with a token, that of the beginning of a sequence for example"
            )
        response = [t if own else _NO_RESPONSE for t, own in zip(rollout.tokens, rollout.response_mask(), strict=True)]
        row.add((*prompt_tokens, *rollout.tokens), response, pad_to_multiple_of=_parts(context_size))
    whole = _parts(context_size) * tensor_shards
    wanted = num_tokens or max(whole, -(-len(row.tokens) // whole) * whole)
    row.add((), (), pad_to_multiple_of=1, padding=wanted - len(row.tokens))
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
        rollout_log_probs=_flat([_of_response(rollout, rollout.rollout_log_probs) for rollout in rollouts]),
        old_log_probs=_on_all(rollouts, "old_log_probs"),
        reference_log_probs=_on_all(rollouts, "reference_log_probs"),
        is_padding=torch.tensor(row.is_padding)[held],
        routes=_routes(sequences, row.borders, router)[held] if router else None,
    )


def _routes(sequences: Sequences, borders: Sequence[int], router: RouterShape) -> torch.Tensor:
    """[T, layers, topk]. What has no route on record goes to the first experts, and to nowhere that is looked at:

    padding, and the last token of a response, which an engine samples and never feeds back.
    """
    routes = torch.arange(router.topk).expand(borders[-1], router.num_layers, router.topk).clone()
    for start, (prompt_tokens, rollout) in zip(borders, sequences, strict=False):  # a last border ends the padding
        length = len(prompt_tokens) + len(rollout.tokens)
        if rollout.routes is None:
            raise ValueError("a rollout has no routes to replay")
        found = unpack_routes(rollout.routes, router)
        if len(found) not in (length - 1, length):
            raise ValueError(f"a rollout has the routes of {len(found)} tokens, and {length} tokens")
        routes[start : start + len(found)] = found
    return routes


def _parts(context_size: int) -> int:
    """Into how many equal parts the zigzag split cuts a sequence."""
    return 2 * context_size if context_size > 1 else 1


@dataclass
class _Row:
    """The packed row while it grows."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    is_padding: list[bool] = field(default_factory=list)
    next_tokens: list[int] = field(default_factory=list)  # the response token that follows a position, if one does
    borders: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: Tokens, response: Sequence[int], *, pad_to_multiple_of: int, padding: int = 0) -> None:
        """Appends a sequence, padded; without a token it appends nothing.

        Args:
            response: the last of `tokens`, with `_NO_RESPONSE` for those that are none.
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


def _on_all(rollouts: Sequence[Rollout], name: str) -> torch.Tensor | None:
    """A value of every response token, or None where no rollout has it."""
    found = [_of_response(r, values) for r in rollouts if (values := getattr(r, name)) is not None]
    if found and len(found) != len(rollouts):
        raise ValueError(f"some rollouts of a batch have {name} and some have none")
    return _flat(found) if found or not rollouts else None


def _of_response(rollout: Rollout, values: Sequence[float]) -> Sequence[float]:
    """Of a value for each token, those of response tokens."""
    return [x for x, own in zip(values, rollout.response_mask(), strict=True) if own]


def _flat(values: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor([x for sequence in values for x in sequence], dtype=torch.float32)
