"""Environments that call sys.exit, or never return."""

import asyncio
import sys

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.embedded.episodes import Episodes
from megatron_sspo.rollout.requests.episodes import ServedEpisodes
from megatron_sspo.types import Prompt

PROMPT = Prompt(id="first", tokens=(1,), answer="")


class Ending:
    """An environment and its only episode; one of its methods ends the process."""

    stop, max_episodes = (), 1

    def __init__(self, where):
        self.where = where

    def call(self, name):
        if name == self.where:
            sys.exit(3)

    def open(self, prompt):
        self.call("open")
        return self

    def observe(self, response):
        self.call("observe")

    def close(self):
        self.call("close")


@pytest.mark.parametrize("where", ["open", "observe", "close"])
def test_an_environment_that_ends_the_process_is_an_error_of_its_line(where):
    async def served():
        async with ServedEpisodes(Ending(where), None).episode(PROMPT) as observe:
            await observe("a response")

    with pytest.raises(UserError, match=r"test_ending_environments.py, line \d+ .*sys.exit\(3\)"):
        asyncio.run(served())
    with pytest.raises(UserError, match=r"sys.exit\(3\)"), Episodes(Ending(where), [PROMPT]) as episodes:
        episodes.observe({0: "a response"})
