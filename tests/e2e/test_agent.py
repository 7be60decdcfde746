"""A run whose rollouts are an agent's, through the command line: it learns from the agent's reward alone."""

import json

import pytest

from tests.rollout import talking_models

pytestmark = pytest.mark.slow

_AGENT = '''
import aiohttp


class Vowels:
    """Asks twice, and rewards the share of vowels in the answers."""

    async def run(self, base_url, prompt):
        messages, text = list(prompt.messages), ""
        async with aiohttp.ClientSession() as client:
            for question in ("more", "end"):
                body = {"messages": messages, "max_tokens": 8}
                async with client.post(f"{base_url}/chat/completions", json=body) as answer:
                    message = (await answer.json())["choices"][0]["message"]
                text += message["content"]
                messages += [message, {"role": "user", "content": question}]
        return sum(character in "aeiou" for character in text) / 16
'''

_RECIPE = """
from pathlib import Path

from megatron_sspo.types import Sampling
from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Prompts, Rollouts, Run

HERE = Path(__file__).parent
TASKS = Prompts(source=str(HERE / "tasks.jsonl"), max_tokens=32)


def recipe() -> Run:
    return Run(
        name="run",
        output=str(HERE),
        model=Model(path=str(HERE / "model"), dtype="float32"),
        prompts=TASKS,
        rollouts=Rollouts(
            prompts_per_update=4, group_size=8, sampling=Sampling(max_tokens=64), agent=str(HERE / "vowels.py:Vowels")
        ),
        num_updates=16,
        optimizer=Optimizer(lr=1e-2),
        tokens_per_microbatch=2048,
        evaluation=Evaluation(sets={"tasks": HeldOut(prompts=TASKS)}),
    )
"""


def test_a_run_learns_from_what_its_agent_rewards(workshop) -> None:
    talking_models.build(workshop.folder / "model")
    (workshop.folder / "vowels.py").write_text(_AGENT)
    (workshop.folder / "talking.py").write_text(_RECIPE)
    tasks = [json.dumps({"question": f"say {number}", "answer": "a"}) for number in range(8)]
    (workshop.folder / "tasks.jsonl").write_text("\n".join(tasks))
    done = workshop.run("train", str(workshop.folder / "talking.py"))
    assert done.returncode == 0, done.stderr
    workshop.assert_nobody_left()

    lines = (workshop.folder / "run" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert len(found) == 16
    assert found[-1]["reward/agent"] > found[0]["reward/agent"] + 0.2, [row["reward/agent"] for row in found]
    assert all(row["response/turns_mean"] == 2 for row in found)
    assert all(row["agent/turns"] == 2 and row["agent/branches"] == 1 for row in found[::2])
    assert all(row["engine/log_prob_difference_max"] < 1e-3 for row in found[::2]), "each cycle's first is on-policy"
    lines = (workshop.folder / "run" / "evaluations.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last["tasks/agent"] > first["tasks/agent"] + 0.2
    assert last["tasks/turns"] == 2
