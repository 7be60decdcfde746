"""An evaluation whose weights are lost is left out, and the run goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

from megatron_sspo.job.evaluations import Evaluations


@pytest.mark.parametrize(("update", "is_lost"), [(3, True), (2, False)])
def test_lost_weights_are_sent_again_only_if_they_are_the_evaluated_ones(update: int, is_lost: bool) -> None:
    events: list[str] = []

    def note(event: str) -> Any:
        return lambda *_: events.append(event)

    def compute_metrics(sync: Any) -> dict[str, float]:
        sync()  # as it happens after all servers have failed
        return {"reward": 1.0}

    nothing: Any = SimpleNamespace()
    engine: Any = SimpleNamespace(release_memory=note("released"))
    display: Any = SimpleNamespace(log=events.append)
    options: Any = {"sync": note("sent"), "stop": nothing, "display": display, "records": None}
    evaluations = Evaluations(nothing, engine, {}, {}, {}, None, **options)
    store = SimpleNamespace(by_id=lambda kind: {})
    of_set: Any = SimpleNamespace(compute_metrics=compute_metrics, store=store, cancel=note("cancelled"))
    evaluations.in_progress, evaluations._sets = 2, {"sums": of_set}
    assert evaluations.finish(update)
    assert evaluations.in_progress is None and events[-2:] == ["cancelled", "released"]
    if is_lost:
        assert "evaluation of update 2 is left out" in events[0] and evaluations.newest is None
    else:
        assert events[:2] == ["sent", "evaluation  sums: reward 1.000"]
        assert evaluations._rows == [{"update": 2, "sums/reward": 1.0}]
