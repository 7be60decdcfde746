"""Loads Megatron checkpoints in several layouts; every rank of a group runs this script.

    python converted.py FOLDERS CHECKPOINTS BATCHES RESULTS

It loads the converted checkpoint of every kind of model in every layout of the group's size, in two ways. Each time it
measures the logits, exports, trains a step, and saves.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from megatron_sspo.run import Parallel

EXPERTS, DENSE = ("moe_odd", "mixtral"), ("qwen3", "qwen2", "dense", "one_group")
_TP2_SP = Parallel(tensor=2, sequence=True)
_OF_EXPERTS = {
    "TP1": Parallel(),
    "TP2": _TP2_SP,
    "PP2": Parallel(pipeline=2),
    "PP2 VPP2": Parallel(pipeline=2, virtual_pipeline=2),
    "EP2": Parallel(data=2, expert=2),
    "TP2 ETP2": replace(_TP2_SP, expert_tensor=2),
    "TP2 EP2": replace(_TP2_SP, expert=2),
    "TP2 DP2 EP2 ETP2": replace(_TP2_SP, data=2, expert=2, expert_tensor=2),
}
_OF_DENSE = {
    "TP1": Parallel(),
    "TP2": Parallel(tensor=2),
    "PP2": Parallel(pipeline=2),
    "PP2 VPP2": Parallel(pipeline=2, virtual_pipeline=2),
    "TP2 PP2": Parallel(tensor=2, pipeline=2),
}
LAYOUTS = {(kind, name): parallel for kind in EXPERTS for name, parallel in _OF_EXPERTS.items()}
LAYOUTS |= {("glm4", name): _OF_EXPERTS[name] for name in ("TP1", "PP2 VPP2", "TP2 ETP2", "TP2 EP2")}
LAYOUTS |= {
    (kind, name): _OF_EXPERTS[name] for kind in ("qwen3_next", "minimax") for name in ("TP1", "PP2 VPP2", "TP2 EP2")
}
LAYOUTS |= {(kind, name): parallel for kind in DENSE for name, parallel in _OF_DENSE.items()}
TOKENS = torch.arange(3, 83)[None] % 97


def logits(policy):
    """Returns the logits [T, V] of TOKENS on the last pipeline stage's ranks; elsewhere None. A collective."""
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func

    ends = torch.tensor([0, TOKENS.shape[1]], dtype=torch.int32)
    packed = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=TOKENS.shape[1],
        max_seqlen_kv=TOKENS.shape[1],
    )
    positions = torch.arange(TOKENS.shape[1])[None]

    def step(_, model):
        output = model(input_ids=TOKENS, position_ids=positions, attention_mask=None, packed_seq_params=packed)
        return output, lambda found, non_loss_data: found

    group = parallel_state.get_tensor_model_parallel_group()
    with torch.no_grad():
        found = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=[None] * len(policy.chunks) if len(policy.chunks) > 1 else None,
            model=policy.chunks if len(policy.chunks) > 1 else policy.chunks[0],
            # the interleaved schedule needs as many microbatches as there are stages
            num_microbatches=policy.run.parallel.pipeline,
            seq_length=TOKENS.shape[1],
            micro_batch_size=1,
            forward_only=True,
            collect_non_loss_data=True,
        )
    if not found:
        return None
    shards = [torch.empty_like(found[0]) for _ in range(group.size())]
    torch.distributed.all_gather(shards, found[0].contiguous(), group=group)
    return torch.cat(shards, dim=-1)[0]


def load_as_megatron_does(policy, checkpoint):
    """Loads a checkpoint with Megatron's own functions, after overwriting every weight."""
    from megatron.core import dist_checkpointing

    chunks = [chunk.module for chunk in policy.chunks]
    for chunk in chunks:
        for parameter in chunk.parameters():
            parameter.data.fill_(float("nan"))
    state = {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(chunks)}
    loaded = dist_checkpointing.load(state, str(checkpoint))
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(loaded[f"model{number}"])


def measure(kind, name, folders, checkpoints, batches, results):
    import torch.distributed as dist
    from megatron.core import parallel_state
    from tiny_policy import make_run, read_batch, reference

    from megatron_sspo.objective import sspo
    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.policy import Policy

    parallel = LAYOUTS[kind, name]
    output = results / f"{kind} {name}"
    device = initialize(parallel, seed=0)
    # a router's bias moves, too
    policy = Policy(make_run(parallel, megatron={"moe_router_bias_update_rate": 0.01}), checkpoints / kind, device)
    source = policy.folder
    with torch.no_grad():
        expected = reference(folders / kind)(TOKENS).logits[0]

    def difference():
        found = logits(policy)
        return 0.0 if found is None else float((found[:, : expected.shape[1]] - expected).abs().max())

    measured = {"own": difference(), "scale": float(expected.abs().max())}
    weights = {name: tensor.clone() for name, tensor in policy.weights()}
    measured["own_is_equal"] = all(torch.equal(source.read(name), tensor) for name, tensor in weights.items())
    load_as_megatron_does(policy, checkpoints / kind)
    measured["megatron"] = difference()
    measured["megatron_is_equal"] = all(torch.equal(weights[name], tensor) for name, tensor in policy.weights())
    measured["names"] = sorted(weights) == sorted(source.shapes())
    policy.update(read_batch(batches / f"{kind} ragged.npz"), sspo())
    policy.export(output / "exported")
    trainer = output / "update-000001" / "trainer"
    if dist.get_rank() == 0:
        trainer.mkdir(parents=True)
    dist.barrier()
    policy.save(trainer)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, measured)
    if dist.get_rank() == 0:
        (output / "measured.json").write_text(json.dumps(everyone))
    parallel_state.destroy_model_parallel()


def main(folders, checkpoints, batches, results):
    import torch.distributed as dist
    from launcher import join

    join()
    for (kind, name), parallel in LAYOUTS.items():
        if parallel.num_processes == dist.get_world_size():
            print(f"{kind} {name}", flush=True)
            measure(kind, name, folders, checkpoints, batches, results)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
