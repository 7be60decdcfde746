"""The optimizer on the host of a GPU: the step of the GPU's Adam, its checkpoints, and the memory that it leaves."""

import pytest
import torch

from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.run import Optimizer
from tests.policy.resume import content, host_share
from tests.policy.tiny_policy import make_run

every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def make(folders, device, dtype, share):
    optimizer = Optimizer(lr=1e-3, clip_grad=0.1, offload=share)
    return Policy(make_run(tokens=256, dtype=dtype, optimizer=optimizer), folders["moe"], device)


def allocated(device):
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def masters(policy):
    return torch.cat([m.detach().cpu() for group in policy.optimizer.param_groups for m in group["params"]])


@every_dtype
def test_a_step_is_that_of_the_gpu(folders, batches, device, dtype, note):
    policies, used = [], []
    for share in (0.0, 1.0):
        before = allocated(device)
        policies.append(make(folders, device, dtype, share))
        policies[-1].optimizer.step()  # makes Adam's moments
        used.append(allocated(device) - before)
    assert [host_share(policy) for policy in policies] == [0.0, 1.0]
    if device.type == "cuda":
        size = masters(policies[0]).numel()
        assert used[0] - used[1] > 0.95 * size * (12 if dtype == "bfloat16" else 8)
    start = masters(policies[0])
    for _ in range(3):
        policies[0].gradient(batches["moe"], sspo())
        for chunk, other in zip(*(policy.chunks for policy in policies), strict=True):
            for buffer, its in zip(chunk.buffers, other.buffers, strict=True):
                its.grad_data.copy_(buffer.grad_data)
        norms = [float(policy.optimizer.step()[1]) for policy in policies]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    on_gpu, on_host = (masters(policy) - start for policy in policies)
    error = float((on_host - on_gpu).norm() / on_gpu.norm())
    note(step=error)
    assert error < 1e-4
    for group in policies[1].optimizer.param_groups:
        for master in group["params"]:
            assert torch.equal(master.weight.cpu(), master.detach().to(master.weight.dtype))


@every_dtype
def test_a_checkpoint_moves_between_gpu_and_host_to_the_bit(folders, batches, device, dtype, tmp_path):
    written = []
    for share in (0.0, 1.0, 0.5, 0.0):
        policy = make(folders, device, dtype, share)
        if written:
            policy.load(written[-1])
        else:
            policy.update(batches["moe"], sspo())
        written.append(tmp_path / str(len(written)))
        written[-1].mkdir()
        policy.save(written[-1])
        found, expected = (content(path) for path in (written[-1], written[0]))
        for each in (found, expected):
            each.pop("common.pt", None)  # whose objects are in another order after a resumption
        assert found == expected
