"""`megatron-sspo evaluate` with a server: its greedy answers are those of the in-process engine."""

import json

from megatron_sspo.__main__ import main

_RECIPE = """
from pathlib import Path

from megatron_sspo.types import Sampling
from megatron_sspo.run import Evaluation, HeldOut, Model, Prompts, Rollouts, Run


def recipe() -> Run:
    sums = Prompts(source="arithmetic", options={"size": 6}, template="{question}", max_tokens=8)
    return Run(
        name="evaluation",
        model=Model(path="nowhere"),
        prompts=sums,
        num_updates=1,
        rollouts=Rollouts(sampling=Sampling(max_tokens=12)),
        reward_options={"exact": True},
        evaluation=Evaluation(sets={"sums": HeldOut(prompts=sums)}),
    )
"""


def test_greedy_answers_equal_those_of_the_embedded_engine(engines, folders, tmp_path, monkeypatch):
    owner = engines("dense")
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", owner.key)
    (tmp_path / "recipe.py").write_text(_RECIPE)
    urls = json.dumps([server.client.url for server in owner.pool.servers])
    served = ["--set", "rollouts.engine=sglang", "--set", f"rollouts.options.urls={urls}", "--samples", "3"]
    command = ["evaluate", str(folders["dense"]), "--recipe", str(tmp_path / "recipe.py")]
    assert main([*command, "--output", str(tmp_path / "here")]) == 0
    assert main([*command, *served, "--output", str(tmp_path / "served")]) == 0
    here, there = (
        [json.loads(line) for line in (tmp_path / name / "sums" / "greedy.jsonl").read_text().splitlines()]
        for name in ("here", "served")
    )
    assert len(here) == 6
    assert [(row["id"], row["answers"][0]["text"]) for row in there] == [
        (row["id"], row["answers"][0]["text"]) for row in here
    ]
    sampled = (tmp_path / "served" / "sums" / "sampled.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["answers"]) for line in sampled] == [3] * 6
    numbers = json.loads((tmp_path / "served" / "results.json").read_text())["sets"]["sums"]
    assert {"pass@1", "avg@3", "pass@2", "pass@3"} <= set(numbers)
