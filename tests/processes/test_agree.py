"""Python objects are sent between the hosts' memories, whatever the default process group uses."""

import pytest
import torch.distributed as dist

from megatron_sspo.processes import agree


@pytest.fixture
def alone(monkeypatch):
    """A gloo group of this process, and no control group before and after."""
    monkeypatch.setattr(agree, "_control_group", None)
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_objects_use_gloo(alone, monkeypatch, backend) -> None:
    """Objects by NCCL would go through the GPUs' memory, padded to the largest on every rank."""
    backend_of = dist.get_backend
    monkeypatch.setattr(dist, "get_backend", lambda group=None: backend if group is None else backend_of(group))
    agree.make_control_group()
    group = agree.control_group()
    assert (group is not None) == (backend == "nccl")
    if group is not None:
        assert backend_of(group) == "gloo"

    used = []
    for name in ("all_gather_object", "broadcast_object_list", "barrier"):
        real = getattr(dist, name)

        def noted(*arguments, real=real, **options):
            used.append(options.get("group"))
            return real(*arguments, **options)

        monkeypatch.setattr(dist, name, noted)
    assert agree.all_gather_objects({"a": 1}) == [{"a": 1}]
    assert agree.broadcast_from_rank_0("b") == "b"
    agree.barrier()
    assert agree.run_on_rank_0(lambda: "c") == "c"
    assert len(used) >= 4
    assert all(each is group for each in used)
