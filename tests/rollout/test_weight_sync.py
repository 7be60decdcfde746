"""The content of requests to a server, as far as it can be tested without one."""

import torch

from megatron_sspo.rollout.weight_sync.session import buckets


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
