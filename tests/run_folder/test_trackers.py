"""Trackers, with stand-ins for packages that are not installed here: what they are asked, and what they get."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.run import Tracking
from megatron_sspo.run_folder import metrics_files, trackers

CONFIG = {"optimizer": {"lr": 0.001}, "layouts": {}, "name": "n" * 10_000}
ROW = {"update": 3, "held_out/pass@1": 0.5, "policy/loss": -1 / 3}
VALUES = {"held_out/pass@1": 0.5, "policy/loss": -1 / 3}


class Recorder:
    """A module and its runs: every call of a function becomes a row of `calls`."""

    def __init__(self, calls: list[tuple[str, tuple, dict]]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> "Recorder":
            self.calls.append((name, given, named))
            return self

        return call

    def of(self, name: str) -> list[tuple[tuple, dict]]:
        return [(given, named) for called, given, named in self.calls if called == name]


def attempt(folder: Path, tracking: Tracking, *, first_step: int = 0) -> None:
    """Does what an attempt at a run does."""
    folder.mkdir(exist_ok=True)
    writer = metrics_files.MetricsWriter(folder, tracking, "name", CONFIG, first_step=first_step)
    writer.write(metrics_files.METRICS, ROW)
    writer.close()


def test_rows_wait_for_one_of_an_earlier_update(tmp_path: Path) -> None:
    calls: list[tuple[str, tuple, dict]] = []
    writer = metrics_files.MetricsWriter(tmp_path, Tracking(), "name", CONFIG, first_step=0)
    writer._trackers.append(Recorder(calls))
    writer.hold()
    writer.write(metrics_files.METRICS, {"update": 4, "x": 1.0})
    assert calls == [] and metrics_files.read(tmp_path / metrics_files.METRICS) == [{"update": 4, "x": 1.0}], (
        "it is on disk"
    )
    writer.write(metrics_files.EVALUATIONS, {"update": 3, "y": 2.0})
    writer.release()
    writer.write(metrics_files.METRICS, {"update": 5, "x": 3.0})
    writer.hold()
    writer.write(metrics_files.METRICS, {"update": 6, "x": 4.0})
    writer.close()
    sent = [given for name, given, _ in calls if name == "log"]
    assert sent == [({"y": 2.0}, 3), ({"x": 1.0}, 4), ({"x": 3.0}, 5), ({"x": 4.0}, 6)]
    assert calls[-1][0] == "finish"


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracking = Tracking(tensorboard=True)
    trackers.check(tracking)
    out = metrics_files.MetricsWriter(tmp_path, tracking, "name", {}, first_step=0)
    out.write(metrics_files.METRICS, ROW)
    out.write(
        metrics_files.METRICS, {"update": 4, "policy/loss": 0.5}
    )  # a kill follows; the newest checkpoint is of update 3
    out.close()
    out = metrics_files.MetricsWriter(tmp_path, tracking, "name", {}, first_step=4)
    out.write(metrics_files.METRICS, {"update": 4, "policy/loss": 0.25})
    out.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["held_out/pass@1", "policy/loss"]
    found = [(event.step, event.value) for event in events.Scalars("policy/loss")]
    assert found == [(3, pytest.approx(-1 / 3)), (4, 0.25)]


@pytest.mark.parametrize(
    ("field", "module", "number"),
    [("wandb_project", "wandb", "id"), ("swanlab_project", "swanlab", "id"), ("trackio_project", "trackio", "name")],
)
def test_all_attempts_at_a_run_are_one_run_of_the_tracker(tmp_path: Path, monkeypatch, field, module, number) -> None:
    tracker = Recorder([])
    monkeypatch.setitem(sys.modules, module, tracker)
    for folder in ("a", "a", "b"):
        attempt(tmp_path / folder, Tracking(**{field: "x"}))
    started = [named for _, named in tracker.of("init")]
    assert all((named["project"], named["resume"], named["config"]) == ("x", "allow", CONFIG) for named in started)
    first, second, other = (named[number] for named in started)
    assert first == second != other
    assert tracker.of("log") == [((VALUES,), {"step": 3})] * 3
    assert len(tracker.of("finish")) == 3


class Client:
    """A stand-in for MLflow's client, with one run whose number is 7."""

    def __init__(self, calls: list[tuple]) -> None:
        self._calls = calls
        self._experiments: dict[str, Any] = {}

    def get_experiment_by_name(self, name: str) -> Any:
        return self._experiments.get(name)

    def create_experiment(self, name: str) -> str:
        self._experiments[name] = types.SimpleNamespace(experiment_id=name)
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        self._calls.append(("create", experiment, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))

    def update_run(self, run_id: str, status: str) -> None:
        self._calls.append(("update", run_id, status))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self._calls.append(("log", run_id, *((key, value, *rest[1:]) for key, value, *rest in (*metrics, *params))))

    def set_terminated(self, run_id: str) -> None:
        self._calls.append(("end", run_id))


def test_mlflow_continues_its_run_and_gets_names_that_it_allows(tmp_path: Path, monkeypatch) -> None:
    calls: list[tuple] = []
    client = Client(calls)
    entities = types.SimpleNamespace(Param=lambda *given: given, Metric=lambda *given: given)
    module = types.SimpleNamespace(entities=entities, MlflowClient=lambda: client)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    for _ in range(2):
        attempt(tmp_path / "a", Tracking(mlflow_experiment="x"))
    parameters = ("optimizer.lr", "0.001"), ("layouts", "{}"), ("name", "n" * 6_000)
    logged = ("log", "7", ("held_out/pass_1", 0.5, 3), ("policy/loss", -1 / 3, 3))
    first = [("create", "x", "name"), ("log", "7", *parameters), logged, ("end", "7")]
    assert calls == [*first, ("update", "7", "RUNNING"), logged, ("end", "7")]


def test_a_name_of_mlflow_is_not_a_folder_of_another() -> None:
    """MLflow's store of files makes a folder for each part of a name, and a file for the last one."""
    given = ["a/pass@1", "a/pass@1/low", "reward/mean"]
    assert [trackers._mlflow_name(name) for name in given] == ["a/pass_1", "a/pass_1.low", "reward/mean"]


def test_a_tracker_that_fails_later_is_left_out(tmp_path: Path, monkeypatch, caplog) -> None:
    class Failing(Recorder):
        def log(self, values: dict, step: int) -> None:
            self.calls.append(("log", (), {}))
            raise ConnectionError("no answer\nat all")

    failing, working = Failing([]), Recorder([])
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: failing))
    monkeypatch.setitem(sys.modules, "trackio", types.SimpleNamespace(init=lambda **_: working))
    writer = metrics_files.MetricsWriter(
        tmp_path, Tracking(wandb_project="x", trackio_project="x"), "name", CONFIG, first_step=0
    )
    for update in (3, 4):
        writer.write(metrics_files.METRICS, {**ROW, "update": update})
    writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        "WeightsAndBiases gets no metrics from update 3 on, because it failed: no answer"
    ]
    assert len(failing.of("log")) == 1 and len(working.of("log")) == 2 and len(working.of("finish")) == 1
    assert [row["update"] for row in metrics_files.read(tmp_path / metrics_files.METRICS)] == [3, 4]


def test_a_tracker_that_does_not_start_is_named(tmp_path: Path, monkeypatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("no API key\nUse wandb login")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=refuse))
    with pytest.raises(UserError, match=r"tracking.wandb_project is 'x', but wandb does not start \(no API key\): set"):
        attempt(tmp_path / "a", Tracking(wandb_project="x"))


@pytest.mark.parametrize("field", [field for field in trackers.KINDS if field != "tensorboard"])
def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    trackers.check(Tracking())
    module = trackers.KINDS[field].module
    find = trackers.importlib.util.find_spec
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None if name == module else find(name))
    with pytest.raises(UserError, match=rf"{module}, which is not installed: pip install 'megatron-sspo\[tracking\]'"):
        trackers.check(Tracking(**{field: "x"}))


def test_a_folder_of_that_name_is_no_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves a folder `wandb` in its working folder, which Python treats as a package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(UserError, match="wandb, which is not installed"):
        trackers.check(Tracking(wandb_project="x"))


def test_every_field_of_tracking_is_a_tracker() -> None:
    assert list(trackers.KINDS) == list(Tracking.__dataclass_fields__)
