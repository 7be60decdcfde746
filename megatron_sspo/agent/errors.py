"""Turns the errors of `sspo_agents` into those of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager

from megatron_sspo.errors import UserError
from sspo_agents.errors import AgentError


@contextmanager
def agent_errors_as_user_errors() -> Iterator[None]:
    """Turns an AgentError raised inside into a UserError of the same text."""
    try:
        yield
    except AgentError as error:
        raise UserError(str(error)) from error
