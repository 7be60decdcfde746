"""Answers that a request prescribes the form of, on a real server."""

import json
import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from megatron_sspo.reward.protocol import checked_score, open_reward
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.types import Prompt, Sampling
from packages.agents.tests.endpoints import CHAT_TEMPLATE, post, say, user
from tests.policy.tiny_policy import TEMPERATURE, log_probs
from tests.rollout import tiny_models
from tests.rollout.talking_models import agents
from tests.sglang.served import generate, scaled, weights

SCHEMA = {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model whose tokens are the bytes, so that it can write JSON."""
    path = tmp_path_factory.mktemp("bytes")
    alphabet = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_alone = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_alone, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(path)
    config = tiny_models.config("qwen3_moe")
    config.vocab_size, config.max_position_embeddings = len(alphabet), 4096
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(folder, tmp_path_factory):
    options = {
        "grammar_backend": "llguidance",  # xgrammar, SGLang's default, works on GPUs alone
        "constrained_json_disable_any_whitespace": True,  # a random model would write spaces without end
    }
    made = sglang.engine(folder, server=options, run_folder=tmp_path_factory.mktemp("run"), verify_every=1)
    made.load_weights(weights(folder), 0)
    yield made
    made.close()


def run(engine, agent):
    prompts = [Prompt(id=str(n), tokens=(1,), answer="", messages=(user(f"say {n}"),)) for n in range(2)]
    made = agents(agent, forced_turns="observe")
    try:
        sampling = Sampling(max_tokens=400, temperature=TEMPERATURE)
        return generate(engine, prompts, sampling, group_size=2, seed=0, environment=made)
    finally:
        made.close()


def test_a_turn_after_a_forced_one_has_the_log_probs_of_the_model(engine, folder) -> None:
    async def talk(base_url, prompt):
        answer = await say(base_url, [*prompt.messages], max_tokens=200, response_format=form(SCHEMA))
        assert isinstance(json.loads(answer["content"])["b"], bool), answer
        await say(base_url, [*prompt.messages, answer, user("why?")], max_tokens=8)
        return 1.0

    model = scaled(folder, 1.0)
    for group in run(engine, talk):
        for rollout in group.rollouts:
            mask = torch.tensor(rollout.response_mask())
            found = torch.tensor(rollout.rollout_log_probs)
            assert (rollout.reward_parts, rollout.num_turns) == ({"agent": 1.0}, 1)
            assert 0 < int(mask.sum()) <= 8 < len(mask)
            with torch.no_grad():
                expected = log_probs(model, group.prompt, rollout)
            torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=2e-4)
            assert not found[~mask].any()


def test_a_call_of_a_tool_is_forced(engine) -> None:
    async def talk(base_url, prompt):
        answer = await say(base_url, [*prompt.messages], max_tokens=300, tools=[TOOL], tool_choice="required")
        (call,) = answer["tool_calls"]
        assert call["function"]["name"] == "add"
        assert list(json.loads(call["function"]["arguments"])) == ["b"]
        return 1.0

    for group in run(engine, talk):
        assert [rollout.reward for rollout in group.rollouts] == [1.0, 1.0]
        assert not any(len(rollout.tokens) for rollout in group.rollouts), "nothing is learned from"


def test_a_schema_that_the_server_rejects_is_the_agents_error(engine) -> None:
    async def talk(base_url, prompt):
        content = {"messages": [*prompt.messages], "response_format": form({"type": "none such"})}
        status, body = await post(base_url, content)
        assert (status, body["error"]["code"]) == (400, "constrained_decoding"), body
        await say(base_url, [*prompt.messages], max_tokens=8)
        return 1.0

    assert all(len(rollout.tokens) for group in run(engine, talk) for rollout in group.rollouts)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"request": {"max_tokens": 12, "regex": "SCORE: [0-9]"}}, ""),
        ({"request": {"max_tokens": 12}}, r"ended \(finish_reason 'length'\)"),  # what a random model says
        ({"request": {"max_tokens": 4000}}, r"answered 400: .*context length"),
        ({"request": {"max_tokens": 1000}, "timeout": 0.05}, r"TimeoutError \(an attempt has 0.05 s\)"),
    ],
)
def test_a_server_is_asked_as_a_judge(engine, monkeypatch, caplog, changes, reason):
    """A random model judges nothing: this is the protocol, the key, and what counts as a failure."""
    monkeypatch.setenv("JUDGE_KEY", engine.key)
    url = f"{engine.pool.servers[0].client.url}/v1"
    options = {"url": url, "model": "default", "rubric": "is it good?", "key_variable": "JUDGE_KEY", "retries": 0}
    built = open_reward("judge", {**options, **changes})
    prompt = Prompt(id="a", tokens=(1,), answer="3", messages=(user("add 1 and 2"),))
    found = checked_score(built, [prompt] * 8, ["3 </s>", *map(str, range(7))])
    built.close()
    if reason:
        assert found == [{"failure": 0.0}] * 8 and re.search(reason, caplog.text)
    else:
        assert all(0 <= parts["judge"] < 1 for parts in found)
