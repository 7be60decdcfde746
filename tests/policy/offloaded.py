"""Trains with shares of the optimizer on the host, and compares to the bit; every rank of a group runs this script.

python offloaded.py FOLDERS BATCHES RESULTS LAYOUT
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from layouts import CP2, DP2, EP2, OVERLAP, PP2_VPP2, TP2_SP_EP2, TP2_SP_ETP2, Layout

from megatron_sspo.run import Model

LAYOUTS = {
    "DP2": Layout(kind="moe", parallel=DP2),
    "DP2, overlap": Layout(kind="moe", parallel=DP2, ddp=OVERLAP),
    "EP2": Layout(kind="moe", parallel=EP2),
    "TP2 SP EP2": Layout(kind="moe", parallel=TP2_SP_EP2),
    "TP2 SP ETP2": Layout(kind="moe", parallel=TP2_SP_ETP2),
    "PP2 VPP2": Layout(kind="moe", parallel=PP2_VPP2),
    "CP2": Layout(kind="moe", parallel=CP2),
    "EP2, adapters": Layout(kind="moe", parallel=EP2, lora=True),
}
SHARES = (0.0, 0.5, 1.0)
UPDATES = 5
LARGEST_NORM = 1e-3


def train(policy: Any, batch: Any, updates: int) -> list[Any]:
    """Returns losses and gradient norms, then this rank's clipped gradients and its weights."""
    from megatron_sspo.objective import sspo

    records = [policy.update(batch, sspo()) for _ in range(updates)]
    numbers = [(record.loss, record.grad_norm, record.learning_rate) for record in records]
    parameters = [parameter for chunk in policy.chunks for parameter in chunk.parameters() if parameter.requires_grad]
    gradients = [parameter.main_grad.clone() for parameter in parameters]
    return [numbers, gradients, [tensor.clone() for _, tensor in policy.weights()]]


def assert_equal(found: list[Any], expected: list[Any], what: str) -> None:
    assert found[0] == expected[0], f"{what}: {found[0]} is not {expected[0]}"
    for kind, these, those in zip(("gradient", "weight"), found[1:], expected[1:], strict=True):
        differ = [i for i, (a, b) in enumerate(zip(these, those, strict=True)) if not torch.equal(a, b)]
        assert not differ, f"{what}: {kind}s {differ} differ"


def compare(name: str, dtype: str, device: torch.device, folder: Path, batch: Any, results: Path) -> None:
    """Trains with each share, saves, and continues from the checkpoint with the next share. A collective."""
    import torch.distributed as dist
    from resume import OPTIMIZER, content, host_share, make_policy
    from tiny_policy import lora

    from megatron_sspo.checkpoint.sharded import seed_random_states

    layout = LAYOUTS[name]
    fields = {"ddp": layout.ddp, "lora": lora("moe", folder) if layout.lora else None}

    def make(share: float) -> Any:
        seed_random_states(0, 0)  # which a checkpoint has as well
        model = Model(path="", dtype=dtype)  # pyright: ignore
        optimizer = replace(OPTIMIZER, clip_grad=LARGEST_NORM, offload=share)
        return make_policy(folder, device, layout.parallel, model=model, optimizer=optimizer, **fields)

    before, after, saved = {}, {}, {}
    for share in SHARES:
        policy = make(share)
        assert abs(host_share(policy) - share) < 0.15, f"{name}: {host_share(policy)} is on the host, not {share}"
        before[share] = train(policy, batch, UPDATES)
        saved[share] = results / f"{name} {dtype} {share}"
        if dist.get_rank() == 0:
            saved[share].mkdir()
        dist.barrier()
        saving = policy.begin_save(saved[share])
        after[share] = train(policy, batch, 1)  # the checkpoint has the state at its beginning
        saving.wait()
        dist.barrier()
        assert all(norm > LARGEST_NORM for _, norm, _ in before[share][0])  # every gradient is clipped
        assert_equal(before[share], before[0.0], f"{name} {dtype} {share}")
        assert_equal(after[share], after[0.0], f"{name} {dtype} {share}, after a save")
        assert content(saved[share]) == content(saved[0.0]), f"{name} {dtype} {share}: the checkpoint differs"
    for share, source in zip(SHARES, (*SHARES[1:], SHARES[0]), strict=True):
        policy = make(share)
        policy.load(saved[source])
        assert_equal(train(policy, batch, 1), after[0.0], f"{name} {dtype}, from {source} to {share}")


def main(folders: Path, batches: Path, results: Path, name: str) -> None:
    import torch.distributed as dist
    from launcher import join
    from tiny_policy import read_batch

    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.with_cuda import offload

    join()
    offload._PIECE = 1024  # so that a slice has several
    batch = read_batch(batches / "moe ragged.npz")
    device = initialize(LAYOUTS[name].parallel, seed=0)
    for dtype in ("float32", "bfloat16"):
        compare(name, dtype, device, folders / "moe", batch, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), sys.argv[4])
