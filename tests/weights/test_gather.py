"""Messages of a gathering: a float32 buffer travels among the weights of a bfloat16 model."""

from dataclasses import replace

import torch

from megatron_sspo.weights.gather import GatherPlan
from megatron_sspo.weights.pieces import pieces_of
from megatron_sspo.weights.table import replicated


def test_a_message_of_two_dtypes_keeps_every_bit():
    """The weights before the buffer have an odd number of elements, so that its bytes are not aligned."""
    rows = [
        replicated("first", "first", (3, 5)),
        replace(replicated("bias", "bias", (4,)), dtype=torch.float32),
        replicated("last", "last", (7,)),
    ]
    tensors = {row.name: torch.randn(row.shape(1)).to(row.dtype or torch.bfloat16) for row in rows}
    shards = dict.fromkeys(tensors, (0, 1))
    holders = {(name, (0, 1)): (0,) for name in tensors}
    plan = GatherPlan(rows, tensors, shards, holders=lambda _: holders)
    assert plan.num_bytes == 2 * 15 + 4 * 4 + 2 * 7
    pieces = [piece for row in pieces_of(rows, holders) for piece in row]
    sent = plan._packed(pieces)
    assert (sent.shape, sent.dtype) == (plan._empty(pieces).shape, torch.bfloat16)
    for (name, _), tensor in plan._unpacked(sent, pieces).items():
        assert tensor.dtype == tensors[name].dtype and torch.equal(tensor, tensors[name])
