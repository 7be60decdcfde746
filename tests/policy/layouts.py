"""The layouts that have to agree, and the script that measures them: every rank of a group runs it.

    python layouts.py FOLDERS BATCHES RESULTS

measures all layouts of the group's size, one behind the other.
"""

import hashlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.run import Parallel


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout, and what runs in it."""

    kind: str
    parallel: Parallel = Parallel()
    tokens: int = 64  # a microbatch
    few: bool = False  # a batch of three sequences, fewer than there are ranks

    @property
    def reference(self) -> str:
        """The name of the layout of one process and one microbatch that runs the same."""
        return f"{self.kind}, few sequences" if self.few else self.kind


LAYOUTS = {
    "moe": Layout(kind="moe", tokens=4096),
    "moe, few sequences": Layout(kind="moe", tokens=4096, few=True),
    "dense": Layout(kind="dense", tokens=4096),
    "tied": Layout(kind="tied", tokens=4096),
    "moe, many microbatches": Layout(kind="moe", tokens=32),
    "tied, many microbatches": Layout(kind="tied", tokens=32),
    "moe DP2": Layout(kind="moe", parallel=Parallel(data=2)),
    "moe EP2": Layout(kind="moe", parallel=Parallel(data=2, expert=2)),
    "moe TP2 SP ETP2": Layout(kind="moe", parallel=Parallel(tensor=2, sequence=True, expert_tensor=2)),
    "moe TP2 SP ETP1": Layout(kind="moe", parallel=Parallel(tensor=2, sequence=True)),
    "moe TP2 SP EP2": Layout(kind="moe", parallel=Parallel(tensor=2, sequence=True, expert=2)),
    "moe PP2": Layout(kind="moe", parallel=Parallel(pipeline=2)),
    "moe PP2 VPP2": Layout(kind="moe", parallel=Parallel(pipeline=2, virtual_pipeline=2)),
    "dense TP2": Layout(kind="dense", parallel=Parallel(tensor=2)),
    "dense TP2 SP": Layout(kind="dense", parallel=Parallel(tensor=2, sequence=True)),
    "tied TP2 SP": Layout(kind="tied", parallel=Parallel(tensor=2, sequence=True)),
    "tied PP2": Layout(kind="tied", parallel=Parallel(pipeline=2)),
    "tied PP2 VPP2": Layout(kind="tied", parallel=Parallel(pipeline=2, virtual_pipeline=2)),
    "moe CP2": Layout(kind="moe", parallel=Parallel(context=2)),
    "moe CP2 EP2": Layout(kind="moe", parallel=Parallel(context=2, expert=2)),
    "dense CP2": Layout(kind="dense", parallel=Parallel(context=2)),
    "moe EP4": Layout(kind="moe", parallel=Parallel(data=4, expert=4)),
    "moe EP4, few sequences": Layout(kind="moe", parallel=Parallel(data=4, expert=4), few=True),
    "moe DP2 EP2": Layout(kind="moe", parallel=Parallel(data=4, expert=2)),
    "moe PP2 EP2": Layout(kind="moe", parallel=Parallel(data=2, pipeline=2, expert=2)),
    "moe PP2 VPP2 EP2": Layout(kind="moe", parallel=Parallel(data=2, pipeline=2, virtual_pipeline=2, expert=2)),
    "moe TP2 SP DP2 EP2 ETP2": Layout(
        kind="moe", parallel=Parallel(data=2, tensor=2, sequence=True, expert=2, expert_tensor=2)
    ),
    "moe TP2 SP PP2": Layout(kind="moe", parallel=Parallel(tensor=2, sequence=True, pipeline=2)),
    "dense TP2 PP2": Layout(kind="dense", parallel=Parallel(tensor=2, pipeline=2)),
    "moe CP4": Layout(kind="moe", parallel=Parallel(context=4)),
    "moe CP2 DP2 EP4": Layout(kind="moe", parallel=Parallel(data=2, context=2, expert=4)),
    "moe CP2 TP2 SP EP2": Layout(kind="moe", parallel=Parallel(context=2, tensor=2, sequence=True, expert=2)),
    "tied CP2 PP2": Layout(kind="tied", parallel=Parallel(context=2, pipeline=2)),
    "tied TP2 PP2": Layout(kind="tied", parallel=Parallel(tensor=2, pipeline=2)),
}
OTHERS = [name for name, layout in LAYOUTS.items() if name != layout.reference]


def read(path: Path) -> dict[str, Any]:
    return torch.load(path)


def measure(layout: Layout, folder: Path, batch_file: Path) -> dict[str, Any]:
    """The quantities that no layout may change. A collective."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from tiny_policy import make_run, read_batch

    from megatron_sspo.metrics import update_metrics
    from megatron_sspo.objective import sspo
    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.policy import Policy

    device = initialize(layout.parallel, seed=0)
    policy = Policy(make_run(layout.parallel, tokens=layout.tokens), folder, device)
    batch = read_batch(batch_file)
    if layout.few:
        batch = [replace(batch[0], rollouts=batch[0].rollouts[:3])]

    def weights() -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in policy.weights()}

    found = {
        "before": weights(),
        "old_log_probs": [list(r.old_log_probs or ()) for g in policy.old_log_probs(batch) for r in g.rollouts],
        "updates": [update_metrics(policy.update(batch, sspo())) for _ in range(3)],
        "after": weights(),
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, _digest(found))
    found["ranks_agree"] = len(set(everyone)) == 1
    parallel_state.destroy_model_parallel()
    return found


def _digest(found: dict[str, Any]) -> str:
    digest = hashlib.sha256(repr((found["old_log_probs"], found["updates"])).encode())
    for weights in (found["before"], found["after"]):
        for name, tensor in weights.items():
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def main(folders: Path, batches: Path, results: Path) -> None:
    import torch.distributed as dist
    from launcher import join

    join()
    for name, layout in LAYOUTS.items():
        if layout.parallel.num_processes != dist.get_world_size():
            continue
        print(f"layout {name}", flush=True)
        found = measure(layout, folders / layout.kind, batches / f"{layout.kind}.jsonl")
        if dist.get_rank() == 0:
            torch.save(found, results / f"{name}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
