"""Parameters of a packed row, as Megatron's model gets them."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from megatron_sspo.batching.microbatch import Microbatch
from megatron_sspo.batching.row import Pieces
from megatron_sspo.policy.shared_prompts.padding import PaddedPieces, padded_pieces


class Rotation(NamedTuple):
    """The cosines and sines by which the rotary embedding turns the tokens of a row, for each pair of dimensions."""

    cos: torch.Tensor  # [T/C, 1, 1, head_dim / 2], in the model's dtype
    sin: torch.Tensor


@dataclass
class RowParams(PackedSeqParams):
    """A row, with the position of each of its tokens.

    `rotation` is set where this package's attention turns queries and keys instead of Megatron (see `rotary.py`).
    """

    position_ids: torch.Tensor | None = None  # [T/C]
    rotation: Rotation | None = None


@dataclass
class SharedSeqParams(RowParams):
    """A row in which prompts are shared.

    Its `cu_seqlens_q` says that the row is one sequence. Megatron's rotary embedding would give this sequence the
    positions from 0 on; `position_ids` has the true positions (see `rotary.py`). Only the attention of this package
    knows which keys a token attends to.
    """

    pieces: Pieces | None = None

    @classmethod
    def of(cls, microbatch: Microbatch) -> "SharedSeqParams":
        """Returns the parameters of a microbatch that has `pieces`."""
        num_tokens = int(microbatch.cu_seqlens[-1])
        shared = {"position_ids": microbatch.position_ids, "pieces": microbatch.pieces}
        return cls(**_one_format(microbatch.cu_seqlens[[0, -1]], num_tokens), **shared)

    @cached_property
    def padded(self) -> tuple[PaddedPieces, ...]:
        """The pieces, padded; computed once for all layers."""
        assert self.pieces is not None
        return padded_pieces(self.pieces)


def packed_seq_params(microbatch: Microbatch) -> RowParams:
    """Returns Megatron's description of a microbatch's row."""
    if microbatch.pieces is not None:
        return SharedSeqParams.of(microbatch)
    row = _one_format(microbatch.cu_seqlens, microbatch.longest)
    return RowParams(**row, position_ids=microbatch.position_ids)


def _one_format(borders: torch.Tensor, longest: int) -> dict:
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": borders,
        "cu_seqlens_kv": borders,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }
