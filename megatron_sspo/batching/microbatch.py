"""The packed tensors of one forward pass of the pipeline schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch

from megatron_sspo.objective import Segments
from megatron_sspo.types import Rollout

Sequences = Sequence[tuple[tuple[int, ...], Rollout]]
"""(prompt tokens, rollout) for each sequence."""


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Sequences one behind the other. T = all tokens with padding, R = response tokens, S = sequences."""

    tokens: torch.Tensor  # [T] int64
    position_ids: torch.Tensor  # [T] int64, from 0 in each sequence
    cu_seqlens: torch.Tensor  # [borders] int32; a last segment of padding counts as a sequence of its own here
    longest: int  # tokens of the longest segment
    response_rows: torch.Tensor  # [R] int64: the positions whose next token is a response token
    response_tokens: torch.Tensor  # [R] int64: those next tokens
    segments: Segments  # of the R response tokens into S sequences
    advantages: torch.Tensor  # [S] float32
    rollout_log_probs: torch.Tensor  # [R] float32
    old_log_probs: torch.Tensor | None  # [R] float32; None where the policy has not moved since the rollout: ρ = 1

    def to(self, device: torch.device) -> "Microbatch":
        """A copy on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        movable = {k: v.to(device) for k, v in values.items() if isinstance(v, (torch.Tensor, Segments))}
        return replace(self, **movable)


def make_microbatch(sequences: Sequences, *, pad_to_multiple_of: int = 1) -> Microbatch:
    """Packs sequences; none at all gives a microbatch of padding that keeps the ranks in lockstep.

    Args:
        sequences: with old log-probs on all of them or on none.
        pad_to_multiple_of: of T (sequence parallelism cuts T into equal parts).
    """
    tokens: list[int] = []
    positions: list[int] = []
    borders, rows, response_tokens = [0], [], []
    for prompt_tokens, rollout in sequences:
        start, prompt_length = len(tokens), len(prompt_tokens)
        tokens.extend(prompt_tokens)
        tokens.extend(rollout.tokens)
        positions.extend(range(prompt_length + len(rollout.tokens)))
        # the token at position t is predicted from row t − 1
        rows.extend(range(start + prompt_length - 1, start + prompt_length - 1 + len(rollout.tokens)))
        response_tokens.extend(rollout.tokens)
        borders.append(len(tokens))
    padding = -len(tokens) % pad_to_multiple_of if tokens else pad_to_multiple_of
    if padding:
        tokens.extend([0] * padding)
        positions.extend(range(padding))
        borders.append(len(tokens))
    rollouts = [rollout for _, rollout in sequences]
    old = [rollout.old_log_probs for rollout in rollouts if rollout.old_log_probs is not None]
    if old and len(old) != len(rollouts):
        raise ValueError("some rollouts of a batch have old log-probs and some have none")
    return Microbatch(
        tokens=torch.tensor(tokens),
        position_ids=torch.tensor(positions),
        cu_seqlens=torch.tensor(borders, dtype=torch.int32),
        longest=max(b - a for a, b in pairwise(borders)),
        response_rows=torch.tensor(rows, dtype=torch.int64),
        response_tokens=torch.tensor(response_tokens, dtype=torch.int64),
        segments=Segments.from_lengths([len(rollout.tokens) for rollout in rollouts]),
        advantages=torch.tensor([rollout.advantage for rollout in rollouts]),
        rollout_log_probs=_flat([rollout.rollout_log_probs for rollout in rollouts]),
        old_log_probs=_flat(old) if old else None,
    )


def _flat(values: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor([x for sequence in values for x in sequence], dtype=torch.float32)
