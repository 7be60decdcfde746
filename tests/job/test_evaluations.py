"""Evaluations whose weights are lost, and those that a resumed run repeats."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from megatron_sspo.job.evaluations import Evaluations
from megatron_sspo.job.records import Records
from megatron_sspo.job.rollout_source import RolloutSource
from megatron_sspo.run import Tracking
from megatron_sspo.run_folder.metrics_files import MetricsWriter


@pytest.mark.parametrize(("update", "is_lost"), [(3, True), (2, False)])
def test_lost_weights_are_sent_again_only_if_they_are_the_evaluated_ones(update: int, is_lost: bool) -> None:
    events: list[str] = []

    def note(event: str) -> Any:
        return lambda *_: events.append(event)

    def compute_metrics(sync: Any) -> dict[str, float]:
        sync()  # as it happens after all servers have failed
        return {"reward": 1.0}

    nothing: Any = SimpleNamespace()
    source = object.__new__(RolloutSource)
    source.engine = cast(Any, SimpleNamespace(release_memory=note("released")))
    display: Any = SimpleNamespace(log=events.append)
    options: Any = {"sync": note("sent"), "stop": nothing, "display": display, "records": None}
    evaluations = Evaluations(nothing, source, {}, None, **options)
    store = SimpleNamespace(by_id=lambda kind: {})
    of_set: Any = SimpleNamespace(compute_metrics=compute_metrics, store=store, cancel=note("cancelled"))
    evaluations.in_progress, evaluations._sets = 2, {"sums": of_set}
    assert evaluations.finish(update)
    assert evaluations.in_progress is None and events[-2:] == ["cancelled", "released"]
    if is_lost:
        assert "evaluation of update 2 is left out" in events[0] and not evaluations._rows
    else:
        assert events[:2] == ["sent", "evaluation  sums: reward 1.000"]
        assert evaluations._rows == [{"update": 2, "sums/reward": 1.0}]


ROW = {"update": 6, "sums/reward": 0.5, "sums/pass@1": 0.5, "sums/avg@4": 0.5, "style/reward": 0.5}


@pytest.mark.parametrize(
    ("update", "sets", "samples", "is_there"),
    [
        (6, ("sums", "style"), 4, True),
        (6, ("sums",), 0, True),
        (6, ("style",), 2, True),  # its reward has no part "answer", and so no avg@2
        (5, ("sums",), 4, False),
        (6, ("sums", "fresh"), 4, False),
        (6, ("sums",), 2, False),
    ],
)
def test_an_evaluation_with_other_settings_is_not_that_of_a_resumed_run(update, sets, samples, is_there) -> None:
    run: Any = SimpleNamespace(evaluation=SimpleNamespace(sets=dict.fromkeys(sets), samples=samples))
    evaluations: Any = SimpleNamespace(_run=run, _rows=[ROW])
    assert Evaluations.has_row(evaluations, update) == is_there
    evaluations._rows = []
    assert not Evaluations.has_row(evaluations, update)


def test_answers_that_cannot_be_written_leave_no_row(tmp_path, monkeypatch) -> None:
    """A kill between the two would lose them for good, because the evaluation with a row is not repeated."""

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("megatron_sspo.job.records.write_rows", kill)
    writer = MetricsWriter(tmp_path, Tracking(), "name", {}, first_step=0)
    records: Any = SimpleNamespace(_folder=tmp_path, writer=writer)
    with pytest.raises(KeyboardInterrupt):
        Records.write_evaluation(records, {"update": 1}, [])
    assert not (tmp_path / "evaluations.jsonl").exists()
