"""The order of a run's start, with stand-ins for all that it opens."""

from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from megatron_sspo.job import job as module
from megatron_sspo.job.job import Job

OPENED = (
    *("open_reward", "open_rewards", "open_environment", "open_environments", "RolloutCycles", "Evaluations"),
    *("check_updates", "agree", "unread_settings", "report_prompts"),
)


@pytest.mark.parametrize(("newest", "work"), [(None, "warm start"), (MagicMock(), "load")])
def test_servers_have_released_their_memory_before_the_trainer_needs_it(monkeypatch, newest, work):
    events = []

    def note(event):
        return lambda *_, **__: events.append(event)

    for name in OPENED:
        monkeypatch.setattr(module, name, MagicMock())
    engine = SimpleNamespace(release_memory=note("release"), close=note("close"))
    monkeypatch.setattr(module, "open_engine", lambda *_: engine)
    job = MagicMock(_resumed_from=newest, _warm_start=note("warm start"))
    job.run.parallel.num_processes = 1
    job._restore = lambda checkpoint: Job._restore(job, checkpoint)
    job.policy.load_resharded = job.policy.load = note("load")
    with ExitStack() as stack:
        Job._start(job, stack)
    assert events == ["release", work, "close"]
