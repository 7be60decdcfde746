"""Checks and opens the environment that a run names, or the agent that takes its place."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

from megatron_sspo.agent.agents import Agents
from megatron_sspo.agent.open import check_agent, open_agents
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import call_with_options, check_members, check_options, resolve
from megatron_sspo.config.user_code import call_user_code
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.errors import UserError
from megatron_sspo.run import Rollouts


def check_environment(rollouts: Rollouts, tokenizer: Any) -> None:
    """Checks a run's environment or agent, if it has one, before it is opened.

    Raises:
        UserError: there is no environment of that name, it lacks an option, or the tokenizer's chat template does not
            support several turns.
    """
    if rollouts.environment:
        check_options(_builder(rollouts), rollouts.environment_options, _description(rollouts))
        TurnTemplate(tokenizer)
    if rollouts.agent:
        check_agent(rollouts.agent, rollouts.agent_options, tokenizer)


def open_environment(
    rollouts: Rollouts, *, max_prompt_tokens: int
) -> AbstractContextManager[Environment | Agents | None]:
    """Opens the environment or the agent as a context that closes it; None if rollouts are single turns.

    Args:
        max_prompt_tokens: the largest number of tokens of a prompt, which bounds an agent's conversations.

    Raises:
        UserError: see `check_environment`, or a requirement of the environment is missing.
    """
    if rollouts.agent:
        return closing(
            open_agents(rollouts.agent, rollouts.agent_options, rollouts.endpoint, max_prompt_tokens=max_prompt_tokens)
        )
    if not rollouts.environment:
        return nullcontext()
    environment = call_with_options(_builder(rollouts), rollouts.environment_options, _description(rollouts))
    check_members(environment, Environment, _description(rollouts))
    _check_values(environment, _description(rollouts))
    return _closing(environment)


@contextmanager
def _closing(environment: Environment) -> Iterator[Environment]:
    try:
        yield environment
    finally:
        call_user_code(environment.close, "the environment's close")


def _check_values(environment: Environment, what: str) -> None:
    stop, most = environment.stop, environment.max_episodes
    if not isinstance(stop, (list, tuple)) or not all(isinstance(text, str) and text for text in stop):
        raise UserError(f"{what} has the stop {describe_value(stop)}: it must be a tuple of strings, () for none")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise UserError(f"{what} has the max_episodes {describe_value(most)}: it must be a whole number of 1 or more")


def _builder(rollouts: Rollouts) -> Any:
    return resolve("environment", rollouts.environment, "environment")


def _description(rollouts: Rollouts) -> str:
    return f"the environment {rollouts.environment!r}"
