"""The agent `verifiers` with the released package, which has an environment of its own: `make test-integrations`."""

import asyncio
import sys
from pathlib import Path

import pytest

from megatron_sspo.agent.verifiers import Verifiers, agent
from megatron_sspo.data.sources.verifiers import rows
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.agents import AgentEpisodes
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.types import Endpoint, Prompt, Sampling
from packages.agents.tests.endpoints import Fixed, serve
from sspo_agents.errors import AgentError
from tests.rollout import tiny_models
from tests.rollout.talking_models import build, prompt

ROOT = Path(__file__).parents[2]
HERE = {"python": str(ROOT / ".venv-verifiers/bin/python"), "folder": str(ROOT / "examples/agents")}
ENVIRONMENT = {
    "taskset": {"id": "verifiers-sums", "num_tasks": 3},
    "agent": {"runtime": {"type": "subprocess"}},
}


def task(number: int) -> Prompt:
    return Prompt(id=str(number), tokens=(1,), answer="", metadata={"task": number})


class Script(Fixed):
    """A policy that calls the tool with 1 and 7, and then says what it got."""

    async def find_calls(self, text, tools):
        return ("", [("add_add", '{"a": 1, "b": 7}')]) if len(self.prompts) % 2 else ("8", [])


def test_episodes_have_the_rubrics_rewards_by_name_and_the_tools() -> None:
    """One process runs one that is right, one wrong, one over its budget, and one that is cancelled; then it ends."""
    sampler = Script()

    async def do(base_url, session, server):
        vf = agent(ENVIRONMENT, **HERE)
        try:
            assert await vf.run(base_url, task(1)) == {"answer": 1.0, "used_tool": 0.1}
            first, second = session.tree.turns
            assert second.parent is first
            question, call, result, _ = second.messages
            assert question.content == "What is 1 + 7?"
            assert (call.calls[0].name, result.content) == ("add_add", "8")
            assert await vf.run(base_url, task(2)) == {"answer": 0.0, "used_tool": 0.1}
            with pytest.raises(RuntimeError, match="episode_budget_exceeded"):
                await vf.run(base_url, task(0))
            with pytest.raises(AgentError, match="no number of a task"):
                await vf.run(base_url, prompt())
            session.tree.turns.clear()  # the episode has all of its turns again
            sampler.seconds = 60.0
            episode = asyncio.create_task(vf.run(base_url, task(0)))
            while not session.in_progress:
                await asyncio.sleep(0.05)
            episode.cancel()
            while session.in_progress:
                await asyncio.sleep(0.05)
            assert sampler.num_cancelled == 1, "the environment was told, and closed its connection"
            vf._process.kill()
            with pytest.raises(RuntimeError, match="exit code -9"):
                await vf.run(base_url, task(0))
            session.tree.turns.clear()  # the episode has all of its turns again
            sampler.seconds = 0.0
            sampler.prompts.clear()
            async with asyncio.timeout(500):
                assert await vf.run(base_url, task(1)) == {"answer": 1.0, "used_tool": 0.1}, "by another process"
        finally:
            await vf.close()

    serve(do, sampler, knows_all=True, max_turns=4)


def test_a_generation_on_the_embedded_engine(tmp_path) -> None:
    prompts = [
        Prompt(id=row.id, tokens=prompt("a").tokens, answer="", messages=tuple(row.question), metadata=row.metadata)
        for row in rows(ENVIRONMENT, **HERE, size=2)
    ]
    assert [one.id for one in prompts] == ["verifiers-sums:0", "verifiers-sums:1"]
    assert prompts[1].messages == ({"role": "user", "content": "What is 1 + 7?"},)
    folder = build(tmp_path / "model", knows_all=True)
    engine = embedded.engine(folder)
    engine.load_weights(tiny_models.weights(folder).items(), 3)
    agents = AgentEpisodes(Verifiers(ENVIRONMENT, **HERE), Endpoint(), max_prompt_tokens=64)
    try:
        generation = engine.start(prompts, Sampling(max_tokens=64), group_size=3, seed=0, environment=agents)
        found = {}
        while completed := generation.wait():
            found.update(completed)
    finally:
        agents.close()
    rollouts = [rollout for group in found.values() for rollout in group.rollouts]
    assert len(rollouts) == 6
    assert all(rollout.reward_parts == {"answer": 0.0, "used_tool": 0.0} for rollout in rollouts)
    assert all(rollout.num_turns == 1 for rollout in rollouts)
    assert agents.agents._agent._process.returncode == 0


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({"taskset": {"id": "none-such"}}, HERE, "taskset 'none-such' not found"),
        (ENVIRONMENT, HERE | {"python": sys.executable}, "No module named 'verifiers'.*name another interpreter"),
        (ENVIRONMENT, HERE | {"python": "/none/such"}, "/none/such cannot be started"),
    ],
)
def test_what_cannot_be_opened_is_named(environment, options, message) -> None:
    with pytest.raises(UserError, match=message):
        rows(environment, **options)
