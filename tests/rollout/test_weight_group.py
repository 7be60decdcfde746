"""The process group between a sender and the servers, as far as it can be tested without NCCL."""

import os

import torch.distributed as dist

from megatron_sspo.rollout.weight_sync import group


def test_torch_leaves_the_errors_of_this_group_alone(monkeypatch):
    # by default torch ends the trainer when NCCL loses a server; the trainer's own groups keep that
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DUMP_ON_TIMEOUT")
    monkeypatch.setenv(names[0], "3")
    monkeypatch.delenv(names[1], raising=False)
    seen = []

    def make(*_, **__):
        seen.extend(os.environ.get(name) for name in names)
        return object(), None

    monkeypatch.setattr(group, "_new_process_group_helper", make)
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: dist.HashStore())
    joined = group.join("127.0.0.1", 1, 2, "weights-0")
    assert seen == ["0", "0"] and [os.environ.get(name) for name in names] == ["3", None]
    del group._world.pg_group_ranks[joined]
