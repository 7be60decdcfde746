"""The order of a run's start, with stand-ins for all that it opens."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from megatron_sspo.job import job as module
from megatron_sspo.job.job import Job

OPENED = (
    "open_parts",
    "RolloutCycles",
    "check_updates",
    "agree",
    "Evaluations",
    "unread_settings",
    "describe_end_of_turn",
    "read_model_config",
    "report_prompts",
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
    for name in ("_open_rollouts", "_restore", "_open_records", "_begin"):
        setattr(job, name, partial(getattr(Job, name), job))
    job.policy.load_resharded = job.policy.load = note("load")
    Job.__enter__(job)
    assert events == ["release", work]
    job._open.close()
    assert events == ["release", work, "close"]
