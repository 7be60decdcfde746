"""The metrics of a run's plug-ins are in its rows, by names that say whose they are."""

from types import SimpleNamespace
from typing import Any

from megatron_sspo.job.rollout_source import RolloutSource


class Counting:
    def metrics(self) -> dict[str, float]:
        return {"code/time": 0.25}


def test_plug_ins_with_metrics_and_without() -> None:
    source: Any = RolloutSource.__new__(RolloutSource)
    source._agent_or_environment = "environment"
    source.engine, source.parts = object(), SimpleNamespace(reward=Counting(), environment=None)
    assert source.metrics({}) == {"reward/code/time": 0.25}
    source.engine, source.parts = Counting(), SimpleNamespace(reward=object(), environment=Counting())
    assert source.metrics({}) == {"code/time": 0.25, "environment/code/time": 0.25}
    source._agent_or_environment = "agent"
    assert source.metrics({}) == {"code/time": 0.25, "agent/code/time": 0.25}
