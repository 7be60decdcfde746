"""A whole run on a real server whose only environment is one of the package verifiers, from which it learns."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import workshop  # noqa: F401  (a fixture)
from tests.rollout import talking_models

ROOT = Path(__file__).parents[2]

_ENVIRONMENT = '''
import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult


class Say(vf.Task[vf.TaskData]):
    @vf.reward
    async def vowels(self, trace: vf.Trace) -> float:
        return sum(character in "aeiou" for message in trace.messages[1:] for character in message.content or "") / 16

    @vf.reward(weight=0.0)
    async def answered(self, trace: vf.Trace) -> float:
        return float(trace.last_reply is not None)


class Vowels(vf.Taskset[Say, vf.TasksetConfig]):
    """Eight tasks; a reward of 1 if all characters of both answers are vowels."""

    def load(self):
        for number in range(8):
            yield Say(vf.TaskData(prompt=f"say {number}"), self.config.task)


class TwoQuestions(vf.Harness[vf.HarnessConfig]):
    """Asks for more after the first answer."""

    APPENDS_SYSTEM_PROMPT, SUPPORTS_MCP, NEEDS_CONTAINER, EXECUTES_CODE = True, False, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = []
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            for question in (data.prompt, "more"):
                messages.append({"role": "user", "content": question})
                completion = await client.chat.completions.create(model=ctx.model, messages=messages, max_tokens=8)
                messages.append(completion.choices[0].message.model_dump(exclude_none=True))
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Vowels", "TwoQuestions"]
'''

_RECIPE = """
from pathlib import Path

from megatron_sspo.types import Sampling
from megatron_sspo.run import Model, Optimizer, Prompts, Rollouts, Run

HERE = Path(__file__).parent
OPTIONS = {
    "environment": {"taskset": {"id": "verifiers-vowels"}, "agent": {"runtime": {"type": "subprocess"}}},
    "python": PYTHON,
    "folder": str(HERE),
}


def recipe() -> Run:
    return Run(
        name="run",
        output=str(HERE),
        model=Model(path=str(HERE / "model"), dtype="float32"),
        prompts=Prompts(source="verifiers", options=OPTIONS, max_tokens=32),
        rollouts=Rollouts(
            engine="sglang",
            options={"verify_every": 1},
            prompts_per_update=4,
            group_size=8,
            sampling=Sampling(max_tokens=64),
            agent="verifiers",
            agent_options=OPTIONS,
        ),
        num_updates=16,
        optimizer=Optimizer(lr=1e-2),
        tokens_per_microbatch=2048,
    )
"""


@pytest.mark.parametrize("updates", [4, pytest.param(16, marks=pytest.mark.long)])
def test_a_run_learns_from_an_environment_of_verifiers(workshop, updates: int) -> None:  # noqa: F811
    """Four updates show that all parts fit together, and sixteen that the run learns."""
    talking_models.build(workshop.folder / "model", knows_all=True)
    (workshop.folder / "verifiers_vowels.py").write_text(_ENVIRONMENT)
    python = ROOT / ".venv-verifiers/bin/python"
    recipe = workshop.folder / "vowels.py"
    recipe.write_text(_RECIPE.replace("PYTHON", repr(str(python))))
    done = workshop.run("train", str(recipe), "--set", f"num_updates={updates}")
    assert done.returncode == 0, done.stdout + done.stderr
    workshop.assert_nobody_left()

    found = [json.loads(line) for line in (workshop.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == updates
    if updates == 16:
        assert found[-1]["reward/vowels"] > found[0]["reward/vowels"] + 0.2, [row["reward/vowels"] for row in found]
    assert all(row["policy/grad_norm"] > 0 for row in found)
    assert all(row["agent/turns"] == 2 and row["agent/failed"] == 0 for row in found[::2])
    assert all(row["engine/log_prob_difference_max"] < 1e-3 for row in found[::2]), "each cycle's first is on-policy"
