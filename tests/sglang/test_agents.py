"""Agents on real servers: weights that change in the middle of conversations, and parsers."""

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt, Sampling
from packages.agents.tests.endpoints import post, say, user
from tests.policy.tiny_policy import TEMPERATURE
from tests.rollout.talking_models import agents
from tests.sglang.served import check_spans, generate, scaled, until_in_the_middle, weights
from tests.sglang.test_overlap import finished

SAMPLING = Sampling(max_tokens=100, temperature=TEMPERATURE)
PROMPTS = [Prompt(id=str(n), tokens=(1,), answer="", messages=(user(f"w{n + 2} w3"),)) for n in range(8)]
GROUP = 4


async def talk(base_url, prompt):
    messages = [*prompt.messages]
    for number in range(3):
        answer = await say(base_url, messages, max_tokens=24)
        messages += [answer, user(f"w{number + 5} w5")]
    return 1.0


@pytest.fixture
def opened():
    made = []

    def of(run, **limits):
        made.append(agents(run, **limits))
        return made[-1]

    yield of
    for one in made:
        one.close()


@pytest.mark.parametrize("pause", ["retract", "abort"])
def test_conversations_continue_with_new_weights(attach, folders, opened, pause):
    """Checks each token's log-prob against the weights that its span names."""
    engine = attach(pause=pause)
    generation = engine.start(PROMPTS, SAMPLING, group_size=GROUP, seed=0, environment=opened(talk))
    until_in_the_middle(engine, num_tokens=100)
    engine.load_weights(weights(folders["dense"], 1.3), 1)
    groups = finished(generation)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert len(rollouts) == len(PROMPTS) * GROUP
    assert max(rollout.num_turns for rollout in rollouts) == 3
    models = [scaled(folders["dense"], factor) for factor in (1.0, 1.3)]
    assert check_spans(models, groups, atol=2e-4), "no conversation has seen both"


def test_the_servers_parsers_are_asked_and_a_wrong_name_ends_the_run(attach, opened):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}

    async def calls(base_url, prompt):
        status, body = await post(base_url, {"messages": [*prompt.messages], "tools": [tool], "max_tokens": 8})
        assert status == 200, body
        content, num_tokens = body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"]
        assert content or num_tokens == 1  # a model of random weights may end its turn at once
        return 1.0

    engine = attach(tool_call_parser="qwen25", reasoning_parser="qwen3")
    (group,) = generate(engine, PROMPTS[:1], SAMPLING, group_size=2, seed=0, environment=opened(calls))
    assert [rollout.reward for rollout in group.rollouts] == [1.0, 1.0]
    engine = attach(tool_call_parser="none_such")
    with pytest.raises(UserError, match="/parse_function_call"):
        generate(engine, PROMPTS[:1], SAMPLING, group_size=2, seed=0, environment=opened(calls))
