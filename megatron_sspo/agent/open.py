"""Checks and opens the agent that a run names."""

import inspect
from collections.abc import Mapping
from typing import Any

from megatron_sspo.agent.agents import Agents
from megatron_sspo.config.resolve import call_with_options, check_options, resolve
from megatron_sspo.errors import UserError
from megatron_sspo.types import Endpoint


def check_agent(name: str, options: Mapping[str, Any], tokenizer: Any) -> None:
    """Checks a run's agent before it is built.

    Raises:
        UserError: there is no agent of that name, it lacks an option, or the tokenizer has no chat template.
    """
    check_options(_builder(name), options, _description(name))
    if not tokenizer.chat_template:
        raise UserError(
            f"rollouts.agent needs a chat template, and the tokenizer {tokenizer.name_or_path!r} has none: choose a "
            "model with one, or no agent"
        )


def open_agents(name: str, options: Mapping[str, Any], limits: Endpoint, *, max_prompt_tokens: int) -> Agents:
    """Builds the run's agent. The caller closes it.

    Raises:
        UserError: see `check_agent`; or the agent has no `async def run`.
    """
    agent = call_with_options(_builder(name), options, _description(name))
    if not inspect.iscoroutinefunction(getattr(agent, "run", None)):
        raise UserError(f"{_description(name)} has no `async def run(self, base_url, prompt)`: define it")
    return Agents(agent, limits, max_prompt_tokens=max_prompt_tokens)


def _builder(name: str) -> Any:
    return resolve("agent", name, "agent")


def _description(name: str) -> str:
    return f"the agent {name!r}"
