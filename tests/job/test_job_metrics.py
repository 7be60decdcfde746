"""A reward's own metrics are in the run's rows."""

from typing import Any

from megatron_sspo.job.job import Job


class Counting:
    def metrics(self) -> dict[str, float]:
        return {"code/time": 0.25}


class Plain:
    pass


def test_a_reward_with_metrics_and_one_without() -> None:
    job: Any = Job.__new__(Job)
    job.reward = Counting()
    assert job._reward_metrics() == {"reward/code/time": 0.25}
    job.reward = Plain()
    assert job._reward_metrics() == {}
