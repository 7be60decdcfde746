"""Runs of several turns through the command line: with an environment, and with an agent that rewards itself."""

import json

import pytest

from megatron_sspo.checkpoint.batches import read_batches
from tests.rollout import acting_models, talking_models
from tests.rows import rows, sets

pytestmark = pytest.mark.slow

_RECIPE = """
from pathlib import Path

from megatron_sspo.types import Sampling
from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Prompts, Rollouts, Run

HERE = Path(__file__).parent


def run(max_tokens: int, **fields) -> Run:
    tasks = Prompts(source=str(HERE / "tasks.jsonl"), max_tokens=max_tokens)
    return Run(
        name="run",
        output=str(HERE),
        model=Model(path=str(HERE / "model"), dtype="float32"),
        prompts=tasks,
        optimizer=Optimizer(lr=1e-2),
        evaluation=Evaluation(sets={"tasks": HeldOut(prompts=tasks)}),
        **fields,
    )


def acting() -> Run:
    rollouts = Rollouts(
        prompts_per_update=3,
        group_size=6,
        sampling=Sampling(max_tokens=40),
        environment="codeact",
        environment_options={"max_turns": 4, "max_characters": 60},
    )
    counts = dict(num_updates=4, tokens_per_microbatch=64, checkpoint_every=1, checkpoints_kept=4)
    return run(16, rollouts=rollouts, reward="codeact", **counts)


def talking() -> Run:
    agent = str(HERE / "vowels.py:Vowels")
    rollouts = Rollouts(prompts_per_update=4, group_size=8, sampling=Sampling(max_tokens=64), agent=agent)
    return run(32, rollouts=rollouts, num_updates=16, tokens_per_microbatch=2048)
"""

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


def write(workshop, *questions: str, answer: str) -> str:
    """Writes the recipes and their tasks, and returns the file of the recipes."""
    tasks = [json.dumps({"question": question, "answer": answer}) for question in questions]
    (workshop.folder / "tasks.jsonl").write_text("\n".join(tasks))
    (workshop.folder / "vowels.py").write_text(_AGENT)
    (workshop.folder / "recipe.py").write_text(_RECIPE)
    return workshop.recipe


def test_a_run_in_an_environment_and_what_it_leaves(workshop) -> None:
    acting_models.build(workshop.folder / "model")
    recipe, run = write(workshop, *(f"w3{number}" for number in range(6)), answer="42"), workshop.folder / "run"
    done = workshop.run("train", f"{recipe}:acting", *sets("num_updates=3"))
    assert done.returncode == 0, done.stderr
    workshop.assert_nobody_left()

    found = rows(run / "metrics.jsonl")
    assert [row["update"] for row in found] == [1, 2, 3]
    assert all(row["response/turns_mean"] > 1 and row["response/observed_tokens_mean"] > 1 for row in found)
    assert all(row["response/tokens"] == pytest.approx(18 * row["response/tokens_mean"]) for row in found)
    assert all(row["engine/log_prob_difference_max"] < 1e-3 for row in found[::2]), "each cycle's first is on-policy"
    assert all(0 < row["environment/cells_per_episode"] < 4 for row in found[::2])
    assert any(row["environment/sessions_ended_early"] > 0 for row in found[::2])
    assert any(row["reward/answer"] > 0 for row in found)

    kept = read_batches(run / "checkpoints" / "update-000003" / "batches.npz")
    batch = [rollout for groups in kept for group in groups for rollout in group.rollouts]
    assert batch, "no batch was left of the cycle"
    assert any(rollout.observed and "[user]" in rollout.transcript for rollout in batch)
    assert len(rows(run / "evaluation_responses.jsonl")) == 6

    changes = sets("num_updates=6", "old_policy=rollout")  # from the next cycle on
    done = workshop.run("train", f"{recipe}:acting", "--resume", str(run), *changes)
    assert done.returncode == 0, done.stderr
    again = rows(run / "metrics.jsonl")
    assert [row["update"] for row in again] == [1, 2, 3, 4, 5, 6]
    assert again[3]["response/observed_tokens_mean"] > 1
    assert [row["engine/log_prob_difference_max"] == 0 for row in again] == [False] * 4 + [True] * 2
    assert again[4]["policy/kl_old"] > 0, "the engine's kernels differ from the trainer's"


def test_a_run_learns_from_what_its_agent_rewards(workshop) -> None:
    talking_models.build(workshop.folder / "model")
    recipe = write(workshop, *(f"say {number}" for number in range(8)), answer="a")
    done = workshop.run("train", f"{recipe}:talking")
    assert done.returncode == 0, done.stderr
    workshop.assert_nobody_left()

    found = rows(workshop.folder / "run" / "metrics.jsonl")
    assert len(found) == 16
    assert found[-1]["reward/agent"] > found[0]["reward/agent"] + 0.2, [row["reward/agent"] for row in found]
    assert all(row["response/turns_mean"] == 2 for row in found)
    assert all(row["agent/turns"] == 2 and row["agent/branches"] == 1 for row in found[::2])
    assert all(row["engine/log_prob_difference_max"] < 1e-3 for row in found[::2]), "each cycle's first is on-policy"
    first, *_, last = rows(workshop.folder / "run" / "evaluations.jsonl")
    assert last["tasks/agent"] > first["tasks/agent"] + 0.2
    assert last["tasks/turns"] == 2
