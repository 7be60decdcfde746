"""Short pieces of a row, padded to one length, so that a single call of attention computes them."""

from dataclasses import dataclass

import torch

from megatron_sspo.batching.row import Pieces


@dataclass(frozen=True)
class PaddedPieces:
    """Some n pieces of a row, padded behind their ends to Q queries and K keys each."""

    queries: torch.Tensor  # [q] int64: the rows of their queries among the rank's tokens
    places: torch.Tensor  # [q] int64: the places of these queries among the n·Q padded ones
    key_rows: torch.Tensor  # [n·K] int64: as `Pieces.key_rows`; 0 for padding
    shape: tuple[int, int, int]  # n, Q, K
    mask: torch.Tensor | None  # [n, 1, Q, K] float32: -inf for the keys that a query does not see; None: causal


def padded_pieces(pieces: Pieces) -> tuple[PaddedPieces, ...]:
    """Returns the pieces that attend to themselves alone, which need no mask, and those with keys before them."""
    before = pieces.cu_keys.diff() - pieces.cu_queries.diff()
    chosen = [(before == 0).nonzero()[:, 0], (before > 0).nonzero()[:, 0]]
    return tuple(_padded(pieces, indices) for indices in chosen if len(indices))


def _padded(pieces: Pieces, indices: torch.Tensor) -> PaddedPieces:
    num_queries, num_keys = pieces.cu_queries.diff()[indices], pieces.cu_keys.diff()[indices]
    query = torch.arange(int(num_queries.max()), device=indices.device)
    key = torch.arange(int(num_keys.max()), device=indices.device)
    is_query, is_key = query < num_queries[:, None], key < num_keys[:, None]
    key_rows = torch.zeros_like(is_key, dtype=torch.int64)
    key_rows[is_key] = pieces.key_rows[(pieces.cu_keys[indices, None] + key)[is_key].long()]
    before = num_keys - num_queries
    mask = None
    if before.any():
        is_hidden = key > before[:, None, None] + query[:, None]  # hides the padding of keys from all true queries
        mask = torch.zeros(is_hidden.shape, device=indices.device).masked_fill_(is_hidden, float("-inf"))[:, None]
    return PaddedPieces(
        queries=(pieces.cu_queries[indices, None] + query)[is_query].long(),
        places=is_query.flatten().nonzero()[:, 0],
        key_rows=key_rows.flatten(),
        shape=(len(indices), len(query), len(key)),
        mask=mask,
    )
