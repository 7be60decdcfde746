"""Loops with tools in the real clients of OpenAI and Anthropic, on the embedded engine: `make test-integrations`.

The clients are those of verifiers' environment, which is appended to the path.
"""

import random
import runpy
import sys
from pathlib import Path

import pytest
import torch

from megatron_sspo.rollout.agents import AgentEpisodes
from megatron_sspo.rollout.embedded.turns import QueuedSampler
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.types import Endpoint, Sampling
from tests.rollout import tiny_models
from tests.rollout.talking_models import build, prompt, tokenizer

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
sys.path.append(str(Path(__file__).parents[2] / f".venv-verifiers/lib/{VERSION}/site-packages"))
from anthropic import AsyncAnthropic  # noqa: E402
from openai import AsyncOpenAI  # noqa: E402

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}
SAMPLING = Sampling(max_tokens=400)
RESULTS = ("3", "it is 14", "error")


class OpenAILoop:
    """An agent of 3 to 6 turns. Every second episode streams."""

    num_episodes = num_streamed = 0

    async def run(self, base_url, prompt):
        self.num_episodes += 1
        number, messages = self.num_episodes, [*prompt.messages]
        async with AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
            for turn in range(3 + number % 4):
                options = {"model": "policy", "messages": messages, "tools": [TOOL], "max_tokens": 20}
                if number % 2:
                    chunks = [c async for c in await client.chat.completions.create(stream=True, **options)]
                    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
                    content = "".join(delta.content or "" for delta in deltas)
                    calls = [c.model_dump(exclude={"index"}) for delta in deltas for c in delta.tool_calls or []]
                    messages.append({"role": "assistant", "content": content, "tool_calls": calls})
                    self.num_streamed += 1
                else:
                    completion = await client.chat.completions.create(**options)
                    messages.append(completion.choices[0].message.model_dump(exclude_none=True))
                for call in messages[-1]["tool_calls"]:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULTS[turn % 3]})
        return 1.0


class AnthropicLoop:
    """The same with Anthropic's client."""

    num_episodes = num_streamed = 0

    async def run(self, base_url, prompt):
        self.num_episodes += 1
        number, messages = self.num_episodes, [*prompt.messages]
        tool = {"name": "add", "description": "adds", "input_schema": SCHEMA}
        async with AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key="x", max_retries=0) as client:
            for turn in range(3 + number % 4):
                options = {"model": "policy", "messages": messages, "tools": [tool], "max_tokens": 20}
                if number % 2:
                    async with client.messages.stream(**options) as stream:
                        message = await stream.get_final_message()
                    self.num_streamed += 1
                else:
                    message = await client.messages.create(**options)
                assert message.stop_reason in ("tool_use", "max_tokens")
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": RESULTS[turn % 3]}
                    for block in message.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "assistant", "content": message.content})
                messages.append({"role": "user", "content": results})
        return 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("models") / "talking", knows_all=True)


@pytest.fixture(autouse=True)
def every_answer_calls(monkeypatch):
    """Makes a call of every answer, because a random model writes none."""

    async def with_call(self, text, tools):
        return text, [("add", f'{{"a": {len(text)}}}')]

    monkeypatch.setattr(QueuedSampler, "find_calls", with_call)


def generate(engine, agent, *, num_prompts, seed):
    agents = AgentEpisodes(agent, Endpoint(max_episodes=16), max_prompt_tokens=64)
    try:
        prompts = [prompt(f"add {number}") for number in range(num_prompts)]
        generation = engine.start(prompts, SAMPLING, group_size=4, seed=seed, environment=agents)
        found = {}
        while completed := generation.wait():
            found.update(completed)
        assert agents.metrics() | {"turns": 0} == {"turns": 0, "branches": 1, "refused": 0, "late": 0, "failed": 0}
        return [found[place] for place in sorted(found)]
    finally:
        agents.close()


def check_log_probs(model, groups, version):
    """Compares every recorded log-prob with the model's, at the token's own place in the recorded conversation."""
    for group in groups:
        for rollout in group.rollouts:
            assert rollout.policy_version == version
            tokens = torch.tensor([[*group.prompt.tokens, *rollout.tokens.tolist()]])
            with torch.no_grad():
                log_probs = model(tokens).logits[0].log_softmax(-1)[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
            own = rollout.response_mask()
            expected = log_probs[len(group.prompt.tokens) - 1 :].numpy()
            assert rollout.rollout_log_probs[own] == pytest.approx(expected[own], abs=2e-4)
            assert 3 <= rollout.num_turns <= 6


def count_turns(groups):
    """Returns the number of turns, and of those whose text has other tokens than were sampled."""
    vocabulary, num_turns, num_different = tokenizer(knows_all=True), 0, 0
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        tokens, ends = rollout.tokens.tolist(), [first for first, _ in rollout.observed]
        starts = [0, *(beyond for _, beyond in rollout.observed)]
        for start, end in zip(starts, [*ends, len(tokens)], strict=True):
            sampled = tokens[start : end - 1] if tokens[end - 1] == tiny_models.EOS else tokens[start:end]
            text = vocabulary.decode(sampled, skip_special_tokens=True)
            num_turns += 1
            num_different += vocabulary(text, add_special_tokens=False)["input_ids"] != sampled
    return num_turns, num_different


@pytest.mark.parametrize("loop", [OpenAILoop, AnthropicLoop])
def test_what_was_sampled_is_what_is_learned_from(folder, loop) -> None:
    """Checks episodes under load, with other weights for each generation."""
    engine, agent = embedded.engine(folder), loop()
    weights = tiny_models.weights(folder)
    groups = []
    for version, factor in enumerate((1.0, 0.8, 1.2)):
        changed = {name: tensor * factor if "mlp" in name else tensor for name, tensor in weights.items()}
        engine.load_weights(changed.items(), version)
        model = tiny_models.reference(folder)
        for name, parameter in model.named_parameters():
            parameter.mul_(factor if "mlp" in name else 1.0)
        made = generate(engine, agent, num_prompts=4, seed=random.Random(version).getrandbits(30))
        check_log_probs(model, made, version)
        groups += made
    assert agent.num_episodes == sum(len(group.rollouts) for group in groups) == 48
    assert agent.num_streamed > 80
    num_turns, num_different = count_turns(groups)
    print(f"tokenizing again would have differed in {num_different} of {num_turns} turns")  # shown by --capture=no
    assert 0 < num_different < num_turns


def test_the_calculator_of_the_examples(folder, monkeypatch) -> None:
    """Every answer is a call of its tool, so an episode has four turns, and the tool's results are between them."""

    async def with_call(self, text, tools):
        return text, [("calculate", '{"a": 2, "operator": "+", "b": 3}')]

    monkeypatch.setattr(QueuedSampler, "find_calls", with_call)
    calculator = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "agents" / "calculator.py"))
    engine = embedded.engine(folder)
    engine.load_weights(tiny_models.weights(folder).items(), 0)
    [group] = generate(engine, calculator["Calculator"](), num_prompts=1, seed=0)
    for rollout in group.rollouts:
        observed = [tokenizer(knows_all=True).decode(rollout.tokens[first:end]) for first, end in rollout.observed]
        assert len(observed) == 3 and all("5.0" in text for text in observed)
    assert calculator["calculate"]('{"a": 1, "operator": "/", "b": 0}').startswith("error: ZeroDivisionError")
    assert calculator["calculate"]("{").startswith("error: ")
