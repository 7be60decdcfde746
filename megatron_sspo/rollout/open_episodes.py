"""Checks and opens the environment that a run names, or the agent that takes its place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import call_with_options, check_members, check_plugin, resolve
from megatron_sspo.config.user_code import call_user_code
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import Episodes
from megatron_sspo.run import Rollouts


def check_episodes(rollouts: Rollouts, tokenizer: Any) -> None:
    """Checks a run's environment or agent, if it has one, before it is opened.

    Raises:
        UserError: there is no environment of that name, it lacks an option, or the tokenizer's chat template does not
            support several turns.
    """
    if rollouts.environment:
        check_plugin("environment", rollouts.environment, rollouts.environment_options)
        from megatron_sspo.environment.turns import TurnTemplate

        TurnTemplate(tokenizer)
    if rollouts.agent:
        from megatron_sspo.rollout.agents import check_agent

        check_agent(rollouts.agent, rollouts.agent_options, tokenizer)


@contextmanager
def open_episodes(rollouts: Rollouts, *, max_prompt_tokens: int) -> Iterator[Episodes | None]:
    """Opens the environment or the agent, and closes it at the end; None if rollouts are single turns.

    Raises:
        UserError: see `check_episodes`, or a requirement of the environment is missing.
    """
    if not rollouts.agent and not rollouts.environment:
        yield None
        return
    if rollouts.agent:
        from megatron_sspo.rollout.agents import open_agent  # with its HTTP server, which no other run needs

        what = "agent"
        episodes: Episodes = open_agent(
            rollouts.agent, rollouts.agent_options, rollouts.endpoint, max_prompt_tokens=max_prompt_tokens
        )
    else:
        from megatron_sspo.rollout.environments import EnvironmentEpisodes

        what, name = "environment", f"the environment {rollouts.environment!r}"
        build = resolve("environment", rollouts.environment, "environment")
        environment = call_with_options(build, rollouts.environment_options, name)
        check_members(environment, Environment, name)
        _check_values(environment, name)
        episodes = EnvironmentEpisodes(environment)
    try:
        yield episodes
    finally:
        call_user_code(episodes.close, f"the {what}'s close")


def _check_values(environment: Environment, what: str) -> None:
    stop, most = environment.stop, environment.max_episodes
    has_stop = isinstance(stop, (list, tuple)) and all(isinstance(text, str) and text for text in stop)
    if not has_stop or type(most) is not int or most < 1:
        raise UserError(
            f"{what} has the stop {describe_value(stop)} and the max_episodes {describe_value(most)}: they must be a "
            "tuple of strings, () for none, and a whole number of 1 or more"
        )
