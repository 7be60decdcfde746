"""Parameters of a packed row, as Megatron's model gets them."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from megatron_sspo.batching.microbatch import Microbatch
from megatron_sspo.batching.row import Pieces

if TYPE_CHECKING:
    from megatron_sspo.policy.shared_prompts.padding import PaddedPieces


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

    @cached_property
    def padded(self) -> "tuple[PaddedPieces, ...]":
        """The pieces, padded; computed once for all layers."""
        from megatron_sspo.policy.shared_prompts.padding import padded_pieces  # not for Transformer Engine's attention

        assert self.pieces is not None
        return padded_pieces(self.pieces)


def packed_seq_params(microbatch: Microbatch) -> RowParams:
    """Returns Megatron's description of a microbatch's row."""
    borders, position_ids = microbatch.cu_seqlens, microbatch.position_ids
    if microbatch.pieces is None:
        return RowParams(**_one_format(borders, microbatch.longest), position_ids=position_ids)
    whole = _one_format(borders[[0, -1]], int(borders[-1]))
    return SharedSeqParams(**whole, position_ids=position_ids, pieces=microbatch.pieces)


def _one_format(borders: torch.Tensor, longest: int) -> dict:
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": borders,
        "cu_seqlens_kv": borders,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }
