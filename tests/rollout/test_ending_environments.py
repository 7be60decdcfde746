"""Environments that call sys.exit, or never return."""

import asyncio
import sys
import threading
from types import SimpleNamespace

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.embedded.episodes import OpenEpisodes
from megatron_sspo.rollout.engine import ModelText, Sampled
from megatron_sspo.rollout.environments import TurnRunner
from megatron_sspo.rollout.requests import generation, groups
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.types import Prompt, Sampling
from tests.rollout import acting_models

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


class OneTurn:
    async def sample(self, prompt, **options):
        return Sampled([2], [-1.0], "stop", [(0, 1)])


def runner_of(environment):
    tokenizer = acting_models.tokenizer()
    return TurnRunner(ModelText(tokenizer, {tokenizer.eos_token_id}, 128, 64), environment)


async def rollout_in(environment):
    return await runner_of(environment).group(PROMPT, Sampling(), [OneTurn()], policy_version=0)


@pytest.mark.parametrize("where", ["open", "observe", "close"])
def test_an_environment_that_ends_the_process_is_an_error_of_its_line(where):
    async def served():
        await rollout_in(Ending(where))

    with pytest.raises(UserError, match=r"test_ending_environments.py, line \d+ .*sys.exit\(3\)"):
        asyncio.run(served())
    with pytest.raises(UserError, match=r"sys.exit\(3\)"), OpenEpisodes(Ending(where), [PROMPT]) as episodes:
        episodes.observe({0: "a response"})


def test_all_episodes_are_closed_although_the_close_of_one_raises():
    closed = []

    class Episode(Ending):
        def observe(self, response):
            return "and then?"

        def close(self):
            closed.append(self)
            self.call("close")

    episodes = [Episode("close"), Episode(""), Episode("close")]
    waiting = list(episodes)
    environment = SimpleNamespace(open=lambda prompt: waiting.pop(0))
    with pytest.raises(UserError, match=r"sys.exit\(3\)"), OpenEpisodes(environment, [PROMPT] * 3) as opened:
        opened.observe(dict.fromkeys(range(3), "a response"))
    assert sorted(map(id, closed)) == sorted(map(id, episodes))


class Stuck(Ending):
    """An environment whose episode never returns from its first turn, until the test ends."""

    def __init__(self):
        super().__init__("")
        self.is_over = threading.Event()

    def observe(self, response):
        self.is_over.wait()


class Blocking(Stuck):
    """An environment that blocks the thread of the engine's loop, where it must return at once."""

    def open(self, prompt):
        self.is_over.wait()
        return self

    def observe(self, response):
        return None


@pytest.mark.parametrize(("kind", "num_requests"), [(Stuck, 0), (Stuck, 1), (Blocking, 1)])
def test_a_stuck_environment_is_no_progress(monkeypatch, submit, kind, num_requests):
    """The run then ends by its limit of silence. While servers work, it is progress that the pool watches."""
    stuck, marks = kind(), []
    monkeypatch.setattr(groups, "mark_progress", lambda: marks.append(stuck.is_over.is_set()))
    monkeypatch.setattr(groups, "_POLL_SECONDS", 0.05)
    requests = generation.Requests(None, None, None, Options())
    requests._num_in_progress = num_requests
    requests.pool = SimpleNamespace(ready=lambda: [1], version=0)

    requests.takes_schemas = False
    monkeypatch.setattr(groups, "ServedSampler", lambda *_: OneTurn())
    pending = groups.ServedGeneration(
        requests,
        [PROMPT],
        Sampling(),
        1,
        runner=runner_of(stuck),
        submit=submit,
        restart_failed=lambda: None,
        await_any=lambda: None,
    )
    threading.Timer(0.5, stuck.is_over.set).start()
    ((number, _),) = pending.wait()
    assert number == 0 and (False in marks) == (kind is Stuck and bool(num_requests))
