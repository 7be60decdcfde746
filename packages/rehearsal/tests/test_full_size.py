"""Compares the estimate of memory/ with the rehearsals at full size of docs/full_size.json."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from megatron_sspo.memory.estimate import estimate, host_memory
from megatron_sspo.recipe import load_recipe
from sspo_rehearsal.batch import rehearsed_run, workload
from sspo_rehearsal.sizes import find_config
from tools.full_size import RESULTS, rows

ROWS: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rows"]


def test_every_row_was_rehearsed() -> None:
    found = [(row["table"], row["recipe"], tuple(row["changes"])) for row in ROWS]
    assert found == [(row.table, row.recipe, row.changes) for row in rows()]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_estimate_is_within_three_percent(number: int) -> None:
    row = ROWS[number]
    run = load_recipe(row["recipe"], row["changes"])
    config, _ = find_config(run.model.path)
    estimates = estimate(rehearsed_run(run, workload(run)), config, on_cuda=False)
    assert len(row["stages"]) == len(estimates)
    host, on_host = host_memory(run, config), max(sum(stage.get("host", {}).values()) for stage in row["stages"])
    assert on_host == pytest.approx(host.optimizer + host.staging, rel=0.002)
    for stage, estimated in zip(row["stages"], estimates, strict=True):
        static = estimated.weights + estimated.gradients + estimated.optimizer
        assert static == pytest.approx(sum(stage["resident"].values()), rel=0.002)
        assert estimated.total == pytest.approx(sum(stage["peaks"]["update"].values()), rel=0.03)


@pytest.mark.parametrize(
    ("recipe", "changes", "layers", "peaks"),
    [
        ("glm4_5_air_math", (), 46, {1: 67.3, 2: 68.8}),
        ("deepseek_v3_math", (), 61, {1: 34.0, 2: 56.2, 8: 44.1}),
        ("gpt_oss_120b_math", ("parallel.pipeline=1", "megatron={}"), 4, {1: 36.8}),
    ],
)
def test_estimate_of_other_models(recipe: str, changes: Sequence[str], layers: int, peaks: dict[int, float]) -> None:
    """Compares those of docs/models.md, and of models with fewer layers, whose configuration differs in nothing else.

    They have first layers without experts, shared experts, latent attention, stages of unequal length, clamped gates.
    """
    run = load_recipe(f"examples/{recipe}.py", changes)
    config = {**find_config(run.model.path)[0], "num_hidden_layers": layers}
    estimates = estimate(rehearsed_run(run, workload(run)), config, on_cuda=False)
    assert {stage: estimates[stage - 1].total / 1e9 for stage in peaks} == pytest.approx(peaks, rel=0.03)
