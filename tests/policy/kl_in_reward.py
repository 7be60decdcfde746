"""Makes the batches of a cycle with the KL in the reward; every rank of a group runs this script.

python kl_in_reward.py FOLDERS BATCHES RESULTS LAYOUT
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from layouts import PP2, TP2_SP_EP2, Layout

from megatron_sspo.batching.holders import outline, without_old
from megatron_sspo.objective import grpo
from megatron_sspo.run import Optimizer

LAYOUTS = {
    "one process": Layout(kind="moe"),
    "TP2 SP EP2 DP2": Layout(kind="moe", parallel=replace(TP2_SP_EP2, data=2)),
    "PP2, R2": Layout(kind="moe", parallel=PP2),
}
COEF = 0.3


def of_tokens(rewards: torch.Tensor, rollouts: Sequence[Any]) -> list[torch.Tensor]:
    """Returns the advantages of each response's tokens, half of them of the second token on."""
    centered = rewards - rewards.mean()
    return [
        value * torch.tensor([1.0] + [0.5] * len(r.tokens))[: len(r.tokens)]
        for value, r in zip(centered, rollouts, strict=True)
    ]


def measure(name: str, device: torch.device, folders: Path, batches: Path, results: Path) -> None:
    """Writes what each rank has of the cycle after one update of the weights, and the weights. A collective."""
    import torch.distributed as dist
    from resume import make_policy
    from tiny_policy import read_batch

    from megatron_sspo.loop import batches_of
    from megatron_sspo.policy.metrics import update_metrics

    layout = LAYOUTS[name]
    batch = read_batch(batches / "moe ragged.npz")
    replay = "R2" if "R2" in name else "none"
    options = {"optimizer": Optimizer(lr=1e-2), "updates_per_sync": 3, "routing_replay": replay}
    policy = make_policy(folders / "moe", device, layout.parallel, kl_in_reward=COEF, **options)
    policy.update(without_old(batch), grpo())
    given = without_old(batch) if dist.get_rank() == 0 else outline(without_old(batch))
    found = {}
    for kind in ("group_relative", "kl_in_reward:of_tokens"):
        job: Any = SimpleNamespace(policy=policy, run=replace(policy.run, advantage=kind))
        found[kind] = [rollout for each in batches_of(given, job) for g in each for rollout in g.rollouts]
    job = SimpleNamespace(policy=policy, run=policy.run)
    first, *_ = batches_of(given, job)
    policy.export(results / f"{name}, exported")
    record = policy.update(first, grpo())
    if dist.get_rank() == 0:
        found["kl_old"] = update_metrics(record)["policy/kl_old"]
    torch.save(found, results / f"{name} {dist.get_rank()}.pt")
    dist.barrier()


def main(folders: Path, batches: Path, results: Path, name: str) -> None:
    import torch.distributed as dist
    from launcher import join

    from megatron_sspo.policy.distributed import initialize

    join()
    measure(name, initialize(LAYOUTS[name].parallel, seed=0), folders, batches, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
