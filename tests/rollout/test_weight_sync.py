"""The content of requests to a server, as far as it can be tested without one."""

import io

import torch

from megatron_sspo.rollout.weight_sync.session import buckets
from megatron_sspo.rollout.weight_sync.tensor import serialize
from tests.rollout.fp8_senders import Unpickler


def test_bucket_has_bytes_and_the_offsets_of_tensors():
    tensors = [("a", torch.randn(3, 4)), ("b", torch.randn(5).bfloat16()), ("c", torch.randn(2, 2, 2))]
    found = Unpickler(io.BytesIO(serialize(tensors))).load()
    flat = found["flattened_tensor"]
    assert flat.dtype == torch.uint8 and flat.numel() == 48 + 16 + 32
    for (name, tensor), entry in zip(tensors, found["metadata"], strict=True):
        assert (entry.name, entry.shape, entry.dtype) == (name, tensor.shape, tensor.dtype)
        assert entry.end_idx - entry.start_idx == entry.numel == tensor.nbytes
        assert torch.equal(flat[entry.start_idx : entry.end_idx].view(entry.dtype).reshape(entry.shape), tensor)


def test_buckets_keep_order_and_own_their_tensors():
    memory = torch.zeros(4)

    def stream():
        for number in range(5):
            memory.fill_(number)  # each tensor overwrites the one before, as a gathering policy may do
            yield str(number), memory

    found = list(buckets(stream(), 2 * memory.nbytes))
    assert [[name for name, _ in bucket] for bucket in found] == [["0", "1"], ["2", "3"], ["4"]]
    assert [float(tensor[0]) for bucket in found for _, tensor in bucket] == [0, 1, 2, 3, 4]
    assert list(buckets([], 10)) == []
