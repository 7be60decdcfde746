"""Compares the estimate of a rank's memory with measurements of a real update in layouts of two processes."""

import json
from dataclasses import replace
from pathlib import Path

import measure_memory
import memory_layouts
import pytest
from launcher import launch
from memory_layouts import CONFIG, LAYOUTS
from tiny_policy import make_run

from megatron_sspo.errors import UserError
from megatron_sspo.launch.report import report
from megatron_sspo.memory.estimate import checkpoint_bytes, estimate
from megatron_sspo.memory.parameters import layers_per_stage
from megatron_sspo.policy.policy import Policy
from megatron_sspo.run import Parallel, Rollouts, Run
from megatron_sspo.weights.formats.random import write_random_weights
from tests.weights.test_families import QWEN3_30B_A3B

ACTIVATIONS = "activations"  # the measured number includes the layer or the head in computation


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    CONFIG.save_pretrained(folder / "config")
    write_random_weights(folder / "config", folder / "model", seed=0)
    return folder / "model"


@pytest.fixture(scope="module")
def measured(model, tmp_path_factory):
    """(layout, rank) -> bytes by name."""
    results = tmp_path_factory.mktemp("results")
    launch(Path(measure_memory.__file__), 2, model, results)
    return lambda layout, rank: json.loads((results / f"{layout}-{rank}.json").read_text())


def served(run: Run) -> Run:
    """Returns the run with servers instead of the embedded engine."""
    return replace(run, rollouts=replace(run.rollouts, engine="sglang"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_estimate_is_close_to_measurement(measured, layout, rank) -> None:
    found = measured(layout, rank)
    stages = estimate(served(LAYOUTS[layout]), CONFIG.to_dict(), on_cuda=False)
    stage = stages[rank] if len(stages) > 1 else stages[0]
    for name in ("weights", "gradients", "optimizer"):  # these are exact apart from padding
        assert getattr(stage, name) == pytest.approx(found[name], rel=0.01), name
    estimated = stage.total - stage.weights - stage.gradients - stage.optimizer
    assert estimated == pytest.approx(found[ACTIVATIONS], rel=0.1)
    assert stage.total == pytest.approx(sum(found.values()), rel=0.05)


def test_the_size_of_a_checkpoint(model, device, tmp_path) -> None:
    run = make_run(tokens=memory_layouts.TOKENS, dtype="bfloat16")
    policy = Policy(run, model, device)
    policy.update(measure_memory.batch(2, policy.vocab_size), memory_layouts.OBJECTIVE)
    policy.save(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*"))
    assert checkpoint_bytes(run, CONFIG.to_dict()) == pytest.approx(size, rel=0.15)


def test_estimate_of_qwen3_30b_a3b() -> None:
    run = served(make_run(Parallel(data=16, expert=8), dtype="bfloat16"))
    (found,) = estimate(run, QWEN3_30B_A3B, on_cuda=True)
    dense, experts = 1_541_093_376, 28_991_029_248
    assert found.weights == 2 * (dense + experts // 8)
    assert found.gradients == 2 * found.weights
    assert found.optimizer == 12 * (dense // 16 + experts // 16)


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
    with_engine, without = (estimate(r, CONFIG.to_dict(), on_cuda=False)[0] for r in (run, served(run)))
    assert with_engine.engine > with_engine.weights and without.engine == 0


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (Parallel(data=3, expert=3), "parallel.expert is 3, which does not divide the model's 16 experts"),
        (Parallel(pipeline=3), "does not divide the model's 4 layers"),
        (Parallel(tensor=3, sequence=True), "cannot be cut into 3 tensor-parallel shards"),
    ],
)
def test_layouts_that_do_not_divide_the_model_are_refused(parallel, message) -> None:
    with pytest.raises(UserError, match=message):
        estimate(make_run(parallel), CONFIG.to_dict(), on_cuda=False)


@pytest.mark.parametrize(
    ("dtype", "server", "size"),
    [("bfloat16", {}, "61.1"), ("float32", {}, "122.1"), ("float32", {"dtype": "half"}, "61.1")],
)
def test_the_report_counts_the_bytes_of_the_servers_type(dtype, server, size) -> None:
    run = make_run(dtype=dtype, rollouts=Rollouts(engine="sglang", options={"server": server}))
    assert f"a server's GPU holds {size} GB of weights at tp_size 1" in report(run, QWEN3_30B_A3B, on_cuda=True)
