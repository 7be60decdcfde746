"""A tiny random model with a chat template, and agents of plain functions."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from megatron_sspo.rollout.agents import AgentEpisodes
from megatron_sspo.types import Endpoint, Prompt
from packages.agents.tests.endpoints import tokenizer
from tests.rollout import tiny_models


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


def agents(run: Any, **limits: Any) -> AgentEpisodes:
    """Returns agents whose `run` is the given function of the base URL and the prompt."""

    class Agent:
        async def run(self, base_url: str, prompt: Prompt) -> Any:
            return await run(base_url, prompt)

    return AgentEpisodes(Agent(), Endpoint(**limits), max_prompt_tokens=64)
