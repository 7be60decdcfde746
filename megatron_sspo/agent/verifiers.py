"""The agent `verifiers`, which runs environments of the package of that name: see `sspo_agents.verifiers`."""

from collections.abc import Mapping
from typing import Any

from megatron_sspo.agent.errors import agent_errors_as_user_errors
from sspo_agents import verifiers
from sspo_agents.verifiers import TASK, Verifiers

__all__ = ["TASK", "Verifiers", "agent", "chats"]


def agent(environment: Mapping[str, Any], python: str = "", folder: str = "") -> Verifiers:
    """Builds the agent. Options: see `Verifiers`. Raises UserError if it cannot be built."""
    with agent_errors_as_user_errors():
        return Verifiers(environment, python, folder)


def chats(
    environment: Mapping[str, Any], python: str = "", folder: str = "", size: int | None = None
) -> list[list[dict[str, str]]]:
    """Returns the chats that the tasks of an environment begin with: see `sspo_agents.verifiers.chats`."""
    with agent_errors_as_user_errors():
        return verifiers.chats(environment, python, folder, size)
