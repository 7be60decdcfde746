"""Trackers, with stand-ins for packages that are not installed here: what they are asked, and what they get."""

import os
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.processes.stop import Stop
from megatron_sspo.processes.watch.progress import last_mark
from megatron_sspo.run import Tracking
from megatron_sspo.run_folder import metrics_files, mlflow_names, tracker_thread, trackers

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


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS = [
    (ConnectionError("no answer\nat all"), "no answer"),
    (SystemExit(0), r"sys.exit(0)"),
    (Unprintable(), "Unprintable"),
]


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, **runs: Any) -> metrics_files.MetricsWriter:
    """Returns a writer with trackers, each a module that starts the run of that name."""
    for module, run in runs.items():
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(init=lambda run=run, **_: run))
    tracking = Tracking(**{f"{module}_project": "x" for module in runs})
    return metrics_files.MetricsWriter(folder, tracking, "name", CONFIG, first_step=0)


def test_rows_wait_for_one_of_an_earlier_update(tmp_path: Path, monkeypatch) -> None:
    calls: list[tuple[str, tuple, dict]] = []
    writer = started(tmp_path, monkeypatch, wandb=Recorder(calls))
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
    sent = [(*given, named["step"]) for name, given, named in calls if name == "log"]
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


def mlflow_with(client: Client) -> Any:
    entities = types.SimpleNamespace(Param=lambda *given: given, Metric=lambda *given: given)
    return types.SimpleNamespace(entities=entities, MlflowClient=lambda: client)


def test_mlflow_continues_its_run_and_gets_names_that_it_allows(tmp_path: Path, monkeypatch) -> None:
    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "mlflow", mlflow_with(Client(calls)))
    for _ in range(2):
        attempt(tmp_path / "a", Tracking(mlflow_experiment="x"))
    parameters = ("optimizer.lr", "0.001"), ("layouts", "{}"), ("name", "n" * 6_000)
    logged = ("log", "7", ("held_out/pass_1", 0.5, 3), ("policy/loss", -1 / 3, 3))
    first = [("create", "x", "name"), ("log", "7", *parameters), logged, ("end", "7")]
    assert calls == [*first, ("update", "7", "RUNNING"), logged, ("end", "7")]


def test_mlflow_gets_a_row_of_many_metrics_in_requests_that_it_allows(tmp_path: Path, monkeypatch) -> None:
    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "mlflow", mlflow_with(Client(calls)))
    writer = metrics_files.MetricsWriter(tmp_path, Tracking(mlflow_experiment="x"), "name", {}, first_step=0)
    writer.write(metrics_files.METRICS, {"update": 1} | {f"a/{number}": number for number in range(2_001)})
    writer.close()
    logged = [call[2:] for call in calls if call[0] == "log"]
    assert [len(call) for call in logged] == [1_000, 1_000, 1]
    assert [value for call in logged for _, value, _ in call] == [*range(2_001)]


def test_an_experiment_of_mlflow_that_another_run_creates_at_the_same_time(tmp_path: Path, monkeypatch) -> None:
    class Late(Client):
        def create_experiment(self, name: str) -> str:
            super().create_experiment(name)
            raise RuntimeError("RESOURCE_ALREADY_EXISTS")

    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "mlflow", mlflow_with(Late(calls)))
    attempt(tmp_path / "a", Tracking(mlflow_experiment="x"))
    assert calls[0] == ("create", "x", "name")

    class Refusing(Client):
        def create_experiment(self, name: str) -> str:
            raise RuntimeError("no permission")

    monkeypatch.setitem(sys.modules, "mlflow", mlflow_with(Refusing([])))
    with pytest.raises(UserError, match=r"mlflow does not start \(no permission\)"):
        attempt(tmp_path / "b", Tracking(mlflow_experiment="x"))


def test_a_run_of_mlflow_is_continued_only_with_its_parameters(tmp_path: Path, monkeypatch) -> None:
    class Failing(Client):
        def log_batch(self, *_: Any, **__: Any) -> None:
            raise ConnectionError("no answer")

    calls: list[tuple] = []
    monkeypatch.setitem(sys.modules, "mlflow", mlflow_with(Failing([])))
    with pytest.raises(UserError, match="no answer"):
        attempt(tmp_path / "a", Tracking(mlflow_experiment="x"))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow_with(Client(calls)))
    attempt(tmp_path / "a", Tracking(mlflow_experiment="x"))
    assert [call[0] for call in calls] == ["create", "log", "log", "end"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("a/pass@1", "a/pass_1"),
        ("a/pass@1/low", "a/pass_1.low"),  # its store of files makes a file of a/pass_1, which is no folder
        ("reward/mean", "reward/mean"),
        ("reward/", "reward/_"),
        ("/x", "_/x"),
        ("", "_"),
        ("a//b", "a/.b"),
        ("../x", "_/x"),
        ("..a/x", "_a/x"),
        ("a/..", "a/_"),
        ("a/.", "a/_"),
    ],
)
def test_a_name_that_mlflow_allows(key: str, name: str) -> None:
    assert mlflow_names.clean(key) == name


def test_different_keys_have_different_names_in_mlflow() -> None:
    names = mlflow_names.Names()
    given = ["r/a@", "r/a_", "r/a_2", "r/a@", "r/a_", "n" * 300, "n" * 301]
    found = [names.of(key, mlflow_names.clean(key)) for key in given]
    assert found[:5] == ["r/a_", "r/a__2", "r/a_2", "r/a_", "r/a__2"]
    assert found[5] != found[6] and max(map(len, found)) <= 250
    config = {"o": {"a@b": 1, "a_b": 2}, "server": {"x": 1}, "server.x": 2, "p": {"a/b": 3, "": {}}}
    expected = {"o.a_b": 1, "o.a_b_2": 2, "server.x": 1, "server.x_2": 2, "p.a.b": 3, "p.": {}}
    assert mlflow_names.parameters(config) == expected


@pytest.mark.parametrize(("error", "text"), ERRORS)
@pytest.mark.parametrize(("part", "when"), [("log", "from update 3 on"), ("finish", "at the end")])
def test_a_tracker_that_fails_later_is_left_out(tmp_path, monkeypatch, caplog, part, when, error, text) -> None:
    class Failing(Recorder):
        def __getattr__(self, name: str) -> Any:
            call = super().__getattr__(name)
            if name != part:
                return call

            def fail(*given: Any, **named: Any) -> None:
                call(*given, **named)
                raise error

            return fail

    failing, working = Failing([]), Recorder([])
    writer = started(tmp_path, monkeypatch, wandb=failing, trackio=working)
    for update in (3, 4):
        writer.write(metrics_files.METRICS, {**ROW, "update": update})
    writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"wandb gets no metrics {when}, because it failed: {text}"
    ]
    assert len(failing.of(part)) == 1 and len(working.of("log")) == 2 and len(working.of("finish")) == 1
    assert [row["update"] for row in metrics_files.read(tmp_path / metrics_files.METRICS)] == [3, 4]


@pytest.mark.parametrize("part", ["log", "finish"])
def test_a_tracker_that_blocks_delays_neither_a_row_nor_the_end(tmp_path, monkeypatch, caplog, part) -> None:
    released = threading.Event()
    calls: list[Any] = []

    class Blocking:
        def log(self, values: dict, step: int) -> None:
            calls.append(step)
            if part == "log":
                released.wait(60)

        def finish(self) -> None:
            released.wait(60)
            calls.append("finish")

    monkeypatch.setattr(tracker_thread, "_END_SECONDS", 0.5)
    writer = started(tmp_path, monkeypatch, wandb=Blocking())
    for update in (1, 2, 3):
        writer.write(metrics_files.METRICS, {"update": update, "x": 0.5})
    before = last_mark()
    writer.close()
    assert not released.is_set() and last_mark() > before
    assert [record.getMessage() for record in caplog.records] == [
        "wandb gets no metrics at the end, because it does not end within 0 s"
    ]
    released.set()
    for thread in writer._trackers:
        thread._thread.join()
    assert calls == [1, 2, 3, "finish"]


def test_a_tracker_that_falls_behind_gets_the_rows_that_wait_and_no_more(tmp_path, monkeypatch, caplog) -> None:
    released, taken = threading.Event(), threading.Event()

    class Slow(Recorder):
        def log(self, values: dict, step: int) -> None:
            taken.set()
            released.wait(60)
            self.calls.append(("log", (step,), {}))

    slow = Slow([])
    monkeypatch.setattr(tracker_thread, "_MAX_ROWS", 2)
    writer = started(tmp_path, monkeypatch, wandb=slow)
    for update in range(1, 7):
        writer.write(metrics_files.METRICS, {"update": update, "x": 0.5})
        assert taken.wait(60)
    released.set()
    writer.close()
    assert [given for given, _ in slow.of("log")] == [(1,), (2,), (3,)] and len(slow.of("finish")) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "wandb gets no metrics from update 4 on, because 2 rows wait for it"
    ]


@pytest.mark.parametrize(("error", "text"), ERRORS)
def test_a_tracker_that_does_not_start_is_named_and_those_before_it_are_finished(
    tmp_path: Path, monkeypatch, error: BaseException, text: str
) -> None:
    def refuse(**_: Any) -> None:
        raise error

    before = Recorder([])
    monkeypatch.setitem(sys.modules, "wandb", before)
    monkeypatch.setitem(sys.modules, "trackio", types.SimpleNamespace(init=refuse))
    with pytest.raises(UserError) as found:
        attempt(tmp_path / "a", Tracking(wandb_project="x", trackio_project="x"))
    assert f"tracking.trackio_project is 'x', but trackio does not start ({text}): set it up" in str(found.value)
    assert [name for name, _, _ in before.calls] == ["init", "finish"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: os.chdir("/"), "wandb has changed the working folder"),
        (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), "signal only works in main thread"),
    ],
)
def test_a_tracker_that_changes_what_it_shares_with_the_trainer(tmp_path: Path, monkeypatch, change, message) -> None:
    def start(**_: Any) -> Recorder:
        change()
        return Recorder([])

    folder, stop = os.getcwd(), Stop(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=start))
    try:
        with pytest.raises(UserError, match=rf"wandb does not start \({message}"):
            attempt(tmp_path / "a", Tracking(wandb_project="x"))
        assert os.getcwd() == folder and signal.getsignal(signal.SIGTERM) == handler
    finally:
        stop.close()
        os.chdir(folder)


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
