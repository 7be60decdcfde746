"""Agents that call sys.exit."""

import sys

import pytest

from sspo_agents.agents import Agents
from sspo_agents.errors import AgentError


class Ending:
    async def run(self, base_url, prompt):
        if prompt == "first":
            sys.exit(3)
        return 1.0


def test_an_agent_that_ends_the_process_fails_alone():
    agents = Agents(Ending())
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        agents.begin("http://127.0.0.1", "first").result(10)
    assert agents.begin("http://127.0.0.1", "second").result(10) == 1.0
    agents.close()


def test_an_error_of_an_agents_close_is_shown_and_its_thread_ends():
    class Failing(Ending):
        async def close(self):
            raise OSError("the log is gone")

    agents = Agents(Failing())
    with pytest.raises(AgentError, match="the log is gone"):
        agents.close()
    assert not agents._thread.is_alive()
