"""Saves, continues, and repeats from the checkpoint: in one process, or as a script on every rank of a group.

python resume.py FOLDER BATCH CHECKPOINT
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from megatron_sspo.objective import sspo
from megatron_sspo.run import Optimizer, Parallel

OPTIMIZER = Optimizer(lr=1e-3, schedule="linear", warmup_updates=3, clip_grad=1.0, weight_decay=0.1, full_rate_kl=1e-5)


def make_policy(folder: Path, device: torch.device, parallel: Parallel = Parallel(), **fields: Any) -> Any:
    from tiny_policy import make_run

    from megatron_sspo.policy.policy import Policy

    return Policy(make_run(parallel, **{"optimizer": OPTIMIZER, **fields}), folder, device)


def host_share(policy: Any) -> float:
    """Returns the share of this rank's elements whose masters are on the host."""
    from megatron_sspo.policy.with_cuda.offload import HostMaster

    groups = [group for each in policy.optimizer.chained_optimizers for group in each.param_groups]
    masters = [master for group in groups for master in group["params"]]
    on_host = sum(master.numel() for master in masters if isinstance(master, HostMaster))
    return on_host / sum(master.numel() for master in masters)


def content(folder: Path) -> dict[str, Any]:
    """Returns the bytes of a checkpoint's files, and of its index all but a path and a random number."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    index = FileSystemReader(folder).read_metadata()
    return {**found, ".metadata": (index.state_dict_metadata, index.storage_data)}


def train(policy: Any, batch: Any, updates: int = 2, *, in_turns: bool = False) -> list[Any]:
    """Returns losses, gradient norms and learning rates, then log-probs and weights, to be compared to the last bit.

    Args:
        in_turns: whether the gradients are released before and after each update.
    """
    records = []
    for _ in range(updates):
        if in_turns:
            _release(policy)
        records.append(policy.update(batch, sspo()))
    if in_turns:
        _release(policy)
    return [
        [(record.loss, record.grad_norm, record.learning_rate) for record in records],
        [r.old_log_probs.tolist() for g in policy.old_log_probs(batch) for r in g.rollouts if not r.is_outline],
        {name: tensor.clone() for name, tensor in policy.weights()},
    ]


def _release(policy: Any) -> None:
    policy.release_gradients()
    buffers = [buffer for chunk in policy.chunks for buffer in chunk.buffers + chunk.expert_parallel_buffers]
    assert buffers and not any(buffer.grad_data.untyped_storage().nbytes() for buffer in buffers)


def assert_equal_to_the_bit(found: list[Any], expected: list[Any]) -> None:
    assert found[:2] == expected[:2]
    assert found[2].keys() == expected[2].keys()
    assert not [name for name, tensor in expected[2].items() if not torch.equal(found[2][name], tensor)]


def save_and_resume(folder: Path, batch: Any, checkpoint: Path, make: Any, *, in_background: bool) -> None:
    """Compares training after a save with training from its checkpoint, in turns with servers.

    `make(folder)` returns a fresh policy.
    """
    policy = make(folder)
    train(policy, batch)
    if in_background:
        saving = policy.begin_save(checkpoint)
        expected = train(policy, batch)  # while the checkpoint is written
        saving.wait()
    else:
        policy.save(checkpoint)
        expected = train(policy, batch)
    fresh = make(folder)
    fresh.load(checkpoint)
    assert_equal_to_the_bit(train(fresh, batch, in_turns=True), expected)
    assert len({norm for _, norm, _ in expected[0]}) == 2  # the weights changed
    assert len({rate for *_, rate in expected[0]}) == 2  # the learning rate changed


def main(folder: Path, batch_file: Path, checkpoint: Path) -> None:
    import torch.distributed as dist
    from launcher import join
    from tiny_policy import read_batch

    from megatron_sspo.errors import UserError
    from megatron_sspo.policy.distributed import initialize

    join()
    parallel = Parallel(data=2, expert=2)
    device = initialize(parallel, seed=0)

    def make(folder: Path) -> Any:
        return make_policy(folder, device, parallel)

    in_background = checkpoint.with_name("in_background")
    save_and_resume(folder, read_batch(batch_file), in_background, make, in_background=True)
    save_and_resume(folder, read_batch(batch_file), checkpoint, make, in_background=False)
    dist.barrier()
    if dist.get_rank() == 0:
        sorted(checkpoint.glob("__1_*.distcp"))[0].unlink()
    dist.barrier()
    policy = make(folder)
    message = ""
    try:
        policy.load(checkpoint)
    except UserError as error:
        message = str(error)
    messages: list[Any] = [None, None]  # in newer releases of megatron-core only the rank that misses something raises
    dist.all_gather_object(messages, message)
    assert str(checkpoint) in messages[1], "a checkpoint without one of its files was loaded"
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
