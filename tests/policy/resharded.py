"""Resumes in other layouts than the one that saved; every rank of a group runs this script.

    python resharded.py FOLDERS BATCHES RESULTS NAMES

A step loads the checkpoint of an earlier step, saves it again, and takes two updates. A step without an earlier one
trains first: its two updates are those of a run that is not interrupted. It also exports its weights, with which each
later step starts a run in its own layout: the update of that run has no rounding of another layout in it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from layouts import ALONE, gather_gradients

from megatron_sspo.objective import sspo
from megatron_sspo.run import Model, Parallel

DP2 = Parallel(data=2)
EP2, TP2 = Parallel(data=2, expert=2), Parallel(tensor=2)
PP2, PP2_VPP2 = Parallel(pipeline=2), Parallel(pipeline=2, virtual_pipeline=2)
TP2_PP2, TP2_SP_PP2 = Parallel(tensor=2, pipeline=2), Parallel(tensor=2, sequence=True, pipeline=2)

MOVING = {"moe_router_bias_update_rate": 0.01}  # of routers with a bias, which two kinds have


@dataclass(frozen=True, kw_only=True)
class Step:
    """A layout, and the step that saved what is loaded in it."""

    kind: str  # of the model
    parallel: Parallel = Parallel()
    source: str = ""  # the name of an earlier step; "": trains from the start
    dtype: str = "float32"
    ddp: Mapping[str, Any] = field(default_factory=dict)
    offload: float = 0.0  # the share of the optimizer on the host


STEPS = {
    # two processes
    "moe EP2": Step(kind="moe", parallel=EP2, offload=1.0),
    "glm4 EP2": Step(kind="glm4", parallel=EP2),
    "mla EP2": Step(kind="mla", parallel=EP2),
    "gpt_oss EP2": Step(kind="gpt_oss", parallel=EP2),
    "qwen3_next EP2": Step(kind="qwen3_next", parallel=EP2),
    "minimax EP2": Step(kind="minimax", parallel=EP2),
    "tied PP2 VPP2": Step(kind="tied", parallel=PP2_VPP2),
    "one_group TP2": Step(kind="one_group", parallel=TP2),
    "dense PP2": Step(kind="dense", parallel=PP2, dtype="bfloat16"),
    "dense, small buckets": Step(kind="dense", parallel=DP2, ddp=ALONE, offload=0.5),
    # four
    "moe EP2 to TP2 PP2": Step(kind="moe", parallel=TP2_SP_PP2, source="moe EP2", offload=0.5),
    "tied PP2 VPP2 to TP2 PP2": Step(kind="tied", parallel=TP2_PP2, source="tied PP2 VPP2"),
    "glm4 EP2 to TP2 PP2": Step(kind="glm4", parallel=TP2_SP_PP2, source="glm4 EP2"),
    "mla EP2 to TP2 PP2": Step(kind="mla", parallel=TP2_SP_PP2, source="mla EP2"),
    "gpt_oss EP2 to TP2 PP2": Step(kind="gpt_oss", parallel=TP2_SP_PP2, source="gpt_oss EP2"),
    "qwen3_next EP2 to TP2 PP2": Step(kind="qwen3_next", parallel=TP2_SP_PP2, source="qwen3_next EP2"),
    "minimax EP2 to TP2 PP2": Step(kind="minimax", parallel=TP2_SP_PP2, source="minimax EP2"),
    # one
    "moe TP2 PP2 to one process": Step(kind="moe", source="moe EP2 to TP2 PP2"),
    "glm4 TP2 PP2 to one process": Step(kind="glm4", source="glm4 EP2 to TP2 PP2"),
    "mla TP2 PP2 to one process": Step(kind="mla", source="mla EP2 to TP2 PP2"),
    "gpt_oss TP2 PP2 to one process": Step(kind="gpt_oss", source="gpt_oss EP2 to TP2 PP2"),
    "qwen3_next TP2 PP2 to one process": Step(kind="qwen3_next", source="qwen3_next EP2 to TP2 PP2"),
    "minimax TP2 PP2 to one process": Step(kind="minimax", source="minimax EP2 to TP2 PP2"),
    "tied TP2 PP2 to one process": Step(kind="tied", source="tied PP2 VPP2 to TP2 PP2"),
    "one_group TP2 to one process": Step(kind="one_group", source="one_group TP2", offload=1.0),
    "dense, small buckets, to one process": Step(kind="dense", source="dense, small buckets"),
    "dense PP2 to one process": Step(kind="dense", source="dense PP2", dtype="bfloat16", offload=0.5),
    # two again
    "moe TP2 PP2 to EP2": Step(kind="moe", parallel=EP2, source="moe EP2 to TP2 PP2", offload=0.5),
    "moe one process to PP2 VPP2": Step(kind="moe", parallel=PP2_VPP2, source="moe TP2 PP2 to one process"),
    "tied one process to PP2 VPP2": Step(
        kind="tied", parallel=PP2_VPP2, source="tied TP2 PP2 to one process", offload=1.0
    ),
    "dense one process to TP2": Step(kind="dense", parallel=TP2, source="dense PP2 to one process", dtype="bfloat16"),
}


def phases() -> list[tuple[int, list[str]]]:
    """Returns the steps in their order, those next to each other with one number of processes together."""
    groups = groupby(STEPS, key=lambda name: STEPS[name].parallel.num_processes)
    return [(size, list(names)) for size, names in groups]


def origin(name: str) -> str:
    """Returns the name of the step whose training a step continues."""
    while STEPS[name].source:
        name = STEPS[name].source
    return name


def take(name: str, device: torch.device, folders: Path, batches: Path, results: Path) -> None:
    """Takes a step: writes a checkpoint into RESULTS/NAME, and the updates after it into NAME.pt. A collective.

    The last update of NAME.pt is that of a run that starts in this layout with the weights of the origin.
    """
    import torch.distributed as dist
    from resume import OPTIMIZER, make_policy
    from tiny_policy import read_batch

    step = STEPS[name]
    batch = read_batch(batches / f"{step.kind} ragged.npz")
    model = Model(path="", dtype=step.dtype)  # pyright: ignore
    fields = {
        "model": model,
        "ddp": step.ddp,
        "megatron": MOVING,
        "kl_in_reward": 0.1,
        "reference_every": 1,
        "optimizer": replace(OPTIMIZER, offload=step.offload),
    }
    policy = make_policy(folders / step.kind, device, step.parallel, **fields)
    if step.source:
        policy.load_resharded(results / step.source)
    else:
        policy.update(batch, sspo())
        policy.move_reference()
        policy.update(batch, sspo())
    if dist.get_rank() == 0:
        (results / name).mkdir()
    dist.barrier()
    policy.save(results / name)
    if not step.source:
        policy.export(results / f"{name}, exported")
    found = []

    def update(policy: Any) -> None:
        record = policy.update(batch, sspo())
        found.append((record, gather_gradients(policy)))

    if step.dtype == "float32":  # layouts round bfloat16 differently
        update(policy)
        update(policy)
        update(make_policy(results / f"{origin(name)}, exported", device, step.parallel, **fields))
    if dist.get_rank() == 0:
        torch.save(
            [((r.loss, r.grad_norm, r.learning_rate), gradient) for r, gradient in found], results / f"{name}.pt"
        )
    dist.barrier()


def main(folders: Path, batches: Path, results: Path, *names: str) -> None:
    import torch.distributed as dist
    from launcher import join
    from megatron.core import parallel_state

    from megatron_sspo.policy.distributed import initialize

    join()
    for name in names:
        print(f"step {name}", flush=True)
        device = initialize(STEPS[name].parallel, seed=0)
        take(name, device, folders, batches, results)
        parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
