"""Writes rollouts.jsonl: a few rollouts of the newest update, with their token weights, for a reader."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.files.writing import write_rows
from megatron_sspo.types import Rollout, RolloutGroup

_GROUPS = 4  # prompts; of each the best and the worst response are written
_ENDS = 256  # tokens at the beginning of a response, and as many at its end; the rest of a longer one is left out
_PROMPT = 2_000  # characters of a prompt, and of its gold answer
_LONGEST_CHARACTER = 8  # tokens; a character of UTF-8 has four bytes, and a token at least one of them

Piece = tuple[str, float | None]
"""The text of one token or of a few, and the token weight; None for text that the policy did not sample."""


def write_examples(
    path: Path,
    update: int,
    batch: Sequence[RolloutGroup],
    weights: Sequence[tuple[float, torch.Tensor]],
    tokenizer: Any,
) -> None:
    """Replaces the file by rollouts of this update, one per line: at most eight, of at most 512 tokens each.

    Groups with different rewards come first, because the others have no gradient.

    Args:
        weights: the sequence weight and the token weights [|y_i|] of each rollout, in the order of the batch.
    """
    remaining = iter(weights)
    of_groups = [(group, [(rollout, next(remaining)) for rollout in group.rollouts]) for group in batch]
    of_groups.sort(key=lambda item: item[0].has_equal_rewards)
    rows = []
    for group, found in of_groups[:_GROUPS]:
        ordered = sorted(found, key=lambda item: -item[0].reward)
        for rollout, (sequence_weight, token_weights) in [ordered[0], ordered[-1]][: len(ordered)]:
            rows.append(
                {
                    "update": update,
                    "id": group.prompt.id,
                    "prompt": str(tokenizer.decode(group.prompt.tokens))[:_PROMPT],
                    "gold": group.prompt.answer[:_PROMPT],
                    "reward": rollout.reward,
                    "parts": dict(rollout.reward_parts),
                    "advantage": rollout.advantage,
                    "sequence_weight": _rounded(sequence_weight),
                    "tokens": rollout.num_response_tokens,
                    "finish_reason": rollout.finish_reason,
                    "pieces": pieces(rollout, token_weights.tolist(), tokenizer),
                }
            )
    write_rows(path, rows)


def pieces(rollout: Rollout, token_weights: Sequence[float], tokenizer: Any) -> list[Piece]:
    """Returns the text of a response in pieces with their weights; neighbours of the same weight are one piece.

    Args:
        token_weights: w [|y_i|] of the tokens that the policy sampled.
    """
    own = iter(token_weights)
    weights = [_rounded(next(own)) if sampled else None for sampled in rollout.response_mask()]
    left_out = len(weights) - 2 * _ENDS
    if left_out <= 0:
        return _joined(_pieces(rollout.tokens.tolist(), weights, tokenizer))
    first = _joined(_pieces(rollout.tokens[:_ENDS].tolist(), weights[:_ENDS], tokenizer))
    last = _joined(_pieces(rollout.tokens[-_ENDS:].tolist(), weights[-_ENDS:], tokenizer))
    return [*first, (f"\n[{left_out:,} tokens are left out]\n", None), *last]


def _pieces(tokens: Sequence[int], weights: Sequence[float | None], tokenizer: Any) -> Iterator[Piece]:
    """Yields the text that each token adds to the tokens before it.

    A token is decoded together with the piece before it, because some tokenizers drop a space at the beginning. Tokens
    that end within a character wait for its other tokens, and the piece has the smallest of their weights.
    """
    before, start = 0, 0  # the piece before is tokens[before:start]
    for end in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(tokens[before:end]))
        is_cut = text.endswith("\ufffd") and end < len(tokens) and end - start < _LONGEST_CHARACTER
        if is_cut and weights[end] is not None and weights[end - 1] is not None:
            continue
        known = [weight for weight in weights[start:end] if weight is not None]
        yield text[len(str(tokenizer.decode(tokens[before:start]))) :], min(known) if known else None
        before, start = start, end


def _joined(found: Iterator[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for text, weight in found:
        if joined and joined[-1][1] == weight:
            joined[-1] = joined[-1][0] + text, weight
        else:
            joined.append((text, weight))
    return joined


def _rounded(weight: float) -> float | None:
    return round(weight, 4) if math.isfinite(weight) else None
