"""A tiny random model with a chat template, and agents that talk to it over aiohttp."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import torch
from transformers import AutoModelForCausalLM

from megatron_sspo.agent.agents import Agents
from megatron_sspo.types import Endpoint, Prompt
from tests.rollout import tiny_models

CHAT_TEMPLATE = (
    "!{% if tools %}tools {{ tools | length }}.{% endif %}{% for message in messages %}{{ message.role[0] }}:"
    "{{ message.content }}{% for call in message.tool_calls or [] %}={{ call.function.name }}{% endfor %}<eos>"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def tokenizer(*, knows_all: bool = False) -> Any:
    """Returns the tokenizer with the template; if it is to know all characters, the unknown ones are padding."""
    found = tiny_models.tokenizer()
    if knows_all:
        found.backend_tokenizer.model.unk_token = found.pad_token
    found.chat_template = CHAT_TEMPLATE
    return found


def build(folder: Path, *, knows_all: bool = False) -> Path:
    """Saves a random model and the tokenizer."""
    torch.manual_seed(0)
    config = tiny_models.config("qwen3_moe")
    config.max_position_embeddings = 512
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer(knows_all=knows_all).save_pretrained(folder)
    return folder


def prompt(text: str = "add 1 and 2") -> Prompt:
    messages = ({"role": "user", "content": text},)
    tokens = tokenizer().apply_chat_template(list(messages), add_generation_prompt=True)["input_ids"]
    return Prompt(id=text, tokens=tuple(tokens), answer="3", messages=messages)


async def post(base_url: str, content: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    """Sends a request for a completion, and returns the status and the body."""
    url = f"{base_url}/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, json=content, **options) as response:
        return response.status, await response.json()


async def say(base_url: str, messages: list[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Returns the message of a completion, which must succeed."""
    status, body = await post(base_url, {"messages": messages, "max_tokens": 8, **options})
    assert status == 200, body
    return body["choices"][0]["message"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def agents(run: Any, **limits: Any) -> Agents:
    """Returns agents whose `run` is the given function of the base URL and the prompt."""

    class Agent:
        async def run(self, base_url: str, prompt: Prompt) -> Any:
            return await run(base_url, prompt)

    return Agents(Agent(), Endpoint(**limits), max_prompt_tokens=64)
