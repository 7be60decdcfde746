"""The metrics of a run's plug-ins are in its rows, by names that say whose they are."""

from types import SimpleNamespace
from typing import Any

from megatron_sspo.job.job import Job


class Counting:
    def metrics(self) -> dict[str, float]:
        return {"code/time": 0.25}


def test_plug_ins_with_metrics_and_without() -> None:
    job: Any = Job.__new__(Job)
    job.run = SimpleNamespace(rollouts=SimpleNamespace(agent=""))
    job.engine, job.reward, job.environment = object(), Counting(), None
    assert job._plugin_metrics({}) == {"reward/code/time": 0.25}
    job.engine, job.reward, job.environment = Counting(), object(), Counting()
    assert job._plugin_metrics({}) == {"code/time": 0.25, "environment/code/time": 0.25}
    job.run.rollouts.agent = "an agent"
    assert job._plugin_metrics({}) == {"code/time": 0.25, "agent/code/time": 0.25}
