"""The estimate of a rank's memory; `packages/rehearsal` compares it with rehearsals, and these with real processes."""

from dataclasses import replace

import pytest
from tiny_policy import build, make_run

from megatron_sspo.launch.report import report
from megatron_sspo.memory.estimate import estimate
from megatron_sspo.memory.parameters import layers_per_stage
from megatron_sspo.run import Parallel, Rollouts, Run
from tests.weights.test_families import QWEN3_30B_A3B


def served(run: Run) -> Run:
    """Returns the run with servers instead of the embedded engine."""
    return replace(run, rollouts=replace(run.rollouts, engine="sglang"))


def test_estimate_of_qwen3_30b_a3b() -> None:
    run = served(make_run(Parallel(data=16, expert=8), dtype="bfloat16"))
    (found,) = estimate(run, QWEN3_30B_A3B, on_cuda=True)
    dense, experts = 1_541_093_376, 28_991_029_248
    assert found.weights == 2 * (dense + experts // 8)
    assert found.gradients == 2 * found.weights
    assert found.optimizer == 12 * (dense // 16 + experts // 16)
    (reduced,) = estimate(replace(run, ddp={"grad_reduce_in_fp32": False}), QWEN3_30B_A3B, on_cuda=True)
    assert reduced.gradients == found.weights + found.optimizer // 3  # Megatron's copies for the step


def test_stages_share_the_layers_and_the_first_keeps_most_microbatches() -> None:
    run = served(make_run(Parallel(pipeline=4, data=4, expert=4), dtype="bfloat16"))
    stages = estimate(run, QWEN3_30B_A3B, on_cuda=True)
    kept = [stage.activations for stage in stages]
    assert kept[0] == pytest.approx(4 * kept[3], rel=0.05)
    whole = estimate(served(make_run(Parallel(data=4, expert=4), dtype="bfloat16")), QWEN3_30B_A3B, on_cuda=True)
    assert sum(stage.weights for stage in stages) == whole[0].weights
    uneven = {"num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 1}
    assert layers_per_stage(10, Parallel(pipeline=4), uneven) == [3, 3, 3, 1]


def test_an_engine_within_the_trainer_has_weights_and_a_cache_of_its_own() -> None:
    run = replace(make_run(), rollouts=Rollouts(prompts_per_update=4, group_size=4))
    model = build("moe")
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    with_engine, without = (estimate(r, config, on_cuda=False)[0] for r in (run, served(run)))
    assert with_engine.engine > with_engine.weights and without.engine == 0


@pytest.mark.parametrize(
    ("dtype", "server", "size"),
    [("bfloat16", {}, "61.1"), ("float32", {}, "122.1"), ("float32", {"dtype": "half"}, "61.1")],
)
def test_the_report_counts_the_bytes_of_the_servers_type(dtype, server, size) -> None:
    run = make_run(dtype=dtype, rollouts=Rollouts(engine="sglang", options={"server": server}))
    assert f"a server's GPU holds {size} GB of weights at tp_size 1" in report(run, QWEN3_30B_A3B, on_cuda=True)
