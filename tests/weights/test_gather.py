"""Messages of a gathering: a float32 buffer travels among the weights of a bfloat16 model."""

from dataclasses import replace

import torch

from megatron_sspo.rollout.weight_sync.delta import changes_of
from megatron_sspo.rollout.weight_sync.session import buckets
from megatron_sspo.weights.collectors import assign, send_rounds
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


def test_projections_to_latents_travel_in_one_request():
    """SGLang forgets one that comes without the other; in FP8 each has scales, which come in another dtype."""
    names = [f"layers.0.{name}.weight" for name in ("q_a_proj", "kv_a_proj_with_mqa", "o_proj")]
    tensors = {name: torch.ones(3, 3) for name in names}
    assert [[n for n, _ in bucket] for bucket in buckets(tensors.items(), 1)] == [names[:2], names[2:]]
    of_fp8 = [
        (name + end, torch.ones(3).to(torch.float8_e4m3fn) if not end else torch.ones(1))
        for name in names
        for end in ("", "_scale_inv")
    ]
    assert [len(bucket) for bucket in buckets(of_fp8[:5], 1)] == [4, 1]
    rows = [replicated(name, name, (3, 3)) for name in names]
    pieces = pieces_of(rows, {(name, (0, 1)): (0, 1) for name in names})
    rounds = send_rounds(assign(pieces, max_collectors=2), elements=1)
    assert [[piece.row.name for row in some for piece in row] for _, some in rounds] == [names[:2], names[2:]]
    changed = {**tensors, names[0]: torch.zeros(3, 3)}
    assert [change.of.name for change in changes_of(changed.items(), dict(tensors))] == names[:2]
