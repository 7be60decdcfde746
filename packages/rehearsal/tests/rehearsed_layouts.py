"""Layouts of four processes, and the script that keeps their ledger; every rank of a group runs it.

python rehearsed_layouts.py fake RESULTS                      every rank one after the other, without values or messages
python rehearsed_layouts.py real RESULTS SECONDS LAYOUT...    as one of four processes, with both
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from megatron_sspo.batching import holders
from megatron_sspo.run import Model, Optimizer, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Sampling
from sspo_rehearsal.batch import Workload, workload

WORLD = 4
QWEN3 = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}  # fmt: skip
DENSE = {**QWEN3, "model_type": "qwen3"}
MOE = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
GLM = {
    **QWEN3,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "attention_bias": True,
}  # its first layer has no experts
GPT_OSS = {
    **QWEN3,
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "sliding_window": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
QWEN3_NEXT = {
    **QWEN3,
    "model_type": "qwen3_next",
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """A layout, and what is run in it."""

    parallel: Parallel
    family: Mapping[str, Any] = field(default_factory=lambda: MOE)
    dtype: Any = "bfloat16"
    megatron: Mapping[str, Any] = field(default_factory=dict)
    skew: float = 1.0
    offload: float = 0.0

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's configuration: two layers suffice where no pipeline cuts them."""
        return self.family if self.parallel.pipeline > 1 else {**self.family, "num_hidden_layers": 2}

    @property
    def workload(self) -> Workload:
        """The workload of the run, or of its first microbatches where no pipeline has to be filled."""
        return workload(self.run, at_most=4 if self.parallel.pipeline > 1 else 2)

    @property
    def run(self) -> Run:
        """The run, whose updates have four microbatches a rank."""
        per_update = 4 * self.parallel.data * 2
        return Run(
            name="rehearsed",
            model=Model(path="sizes", dtype=self.dtype),
            prompts=Prompts(source="none", max_tokens=64),
            num_updates=10,
            parallel=self.parallel,
            rollouts=Rollouts(
                engine="sglang",
                options={"transport": "distributed", "bucket_bytes": 50_000},
                prompts_per_update=per_update // 2,
                group_size=2,
                sampling=Sampling(max_tokens=64),
            ),
            tokens_per_microbatch=256,
            megatron=self.megatron,
            optimizer=Optimizer(offload=self.offload),
        )


LAYOUTS: Mapping[str, Rehearsed] = {
    "TP2 SP PP2 EP2": Rehearsed(parallel=Parallel(tensor=2, sequence=True, pipeline=2, expert=2)),
    "PP2 VPP2 EP2": Rehearsed(parallel=Parallel(data=2, pipeline=2, virtual_pipeline=2, expert=2)),
    "CP2 EP4": Rehearsed(parallel=Parallel(data=2, context=2, expert=4), dtype="float32", offload=1.0),
    "DP4 EP2 recompute": Rehearsed(parallel=Parallel(data=4, expert=2), megatron=RECOMPUTE, offload=0.5),
    "TP2 SP EP2 ETP2": Rehearsed(parallel=Parallel(data=2, tensor=2, sequence=True, expert=2, expert_tensor=2)),
    "GLM TP2 SP PP2 EP2": Rehearsed(parallel=Parallel(tensor=2, sequence=True, pipeline=2, expert=2), family=GLM),
    "gpt-oss TP2 SP EP2": Rehearsed(parallel=Parallel(data=2, tensor=2, sequence=True, expert=2), family=GPT_OSS),
    "delta nets TP2 SP EP2": Rehearsed(parallel=Parallel(data=2, tensor=2, sequence=True, expert=2), family=QWEN3_NEXT),
    "dense TP2 PP2": Rehearsed(parallel=Parallel(tensor=2, pipeline=2), family=DENSE),
}


def rehearse(layout: Rehearsed, rank: int) -> dict[str, Any]:
    """Returns the ledger of a rank that is alone."""
    from sspo_rehearsal.rank import rehearse_rank
    from sspo_rehearsal.recorder import route_of
    from sspo_rehearsal.sizes import num_experts

    run, config = layout.run, layout.config
    route = route_of(num_experts(config), expert_ranks=layout.parallel.expert, skew=layout.skew)
    return asdict(rehearse_rank(run, config, rank, layout.workload, route))


def measure(layout: Rehearsed, settle_seconds: float) -> dict[str, Any]:
    """Returns the ledger of this process, which computes, communicates, and sleeps after each collective."""
    from megatron.core import parallel_state

    from megatron_sspo.memory import head
    from megatron_sspo.policy.distributed import initialize
    from sspo_rehearsal.ledger import Ledger
    from sspo_rehearsal.rank import rehearse_policy
    from sspo_rehearsal.recorder import Recorder, route_of
    from sspo_rehearsal.sizes import num_experts

    run, config = layout.run, layout.config
    device = initialize(layout.parallel, 0)
    route = route_of(num_experts(config), expert_ranks=layout.parallel.expert, skew=layout.skew)

    class Settled(Recorder):
        """Sleeps after a collective, since gloo's threads hold its tensors for some microseconds more."""

        def _run_collective(self, func: Any, args: Any, kwargs: Any) -> Any:
            found = super()._run_collective(func, args, kwargs)
            if "send" not in str(func) and "recv" not in str(func):
                dist.Work.unbox(found[-1] if isinstance(found, tuple) else found).wait()
                time.sleep(settle_seconds)
            return found

    mode = Settled(Ledger(), num_experts(config), route)
    gpu = [patch.dict(table, {"cpu": table["cuda"]}) for table in (head.BLOCK, head.TILE)]
    with gpu[0], gpu[1], _without_gloo():
        found = rehearse_policy(run, config, layout.workload, mode, device, say=lambda part: None)
    parallel_state.destroy_model_parallel()
    return asdict(found)


@contextmanager
def _without_gloo() -> Iterator[None]:
    """Leaves out the sending of Python objects, of which a rehearsal sends none, and what gloo does as it waits."""

    def unrecorded(function: Any) -> Any:
        def inner(*args: Any, **options: Any) -> Any:
            with _disable_current_modes():
                return function(*args, **options)

        return inner

    with ExitStack() as stack:
        objects = [(dist, "all_gather_object"), (dist, "broadcast_object_list"), (holders, "exchange")]
        for place, name in (*objects, (dist.Work, "wait")):
            stack.enter_context(patch.object(place, name, unrecorded(getattr(place, name))))
        yield


def main(kind: str, results: Path, settle_seconds: str = "0", *names: str) -> None:
    """Writes the ledger of each layout and rank into `results`."""
    torch.set_num_threads(1)
    if kind == "real":
        from launcher import join

        join()
        for name in names:
            found = measure(LAYOUTS[name], float(settle_seconds))
            (results / f"{name} {dist.get_rank()} real.json").write_text(json.dumps(found))
        return
    for name, layout in LAYOUTS.items():
        for rank in range(WORLD):
            (results / f"{name} {rank} fake.json").write_text(json.dumps(rehearse(layout, rank)))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3] / "tests" / "policy"))
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
