"""Agents that call sys.exit."""

import sys

import pytest

from megatron_sspo.agent.agents import Agents
from megatron_sspo.types import Endpoint, Prompt


class Ending:
    async def run(self, base_url, prompt):
        if prompt.id == "first":
            sys.exit(3)
        return 1.0


def test_an_agent_that_ends_the_process_fails_alone():
    agents = Agents(Ending(), Endpoint(), max_prompt_tokens=8)
    first, second = (Prompt(id=id, tokens=(1,), answer="") for id in ("first", "second"))
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        agents.begin("http://127.0.0.1", first).result(10)
    assert agents.begin("http://127.0.0.1", second).result(10) == 1.0
    agents.close()
