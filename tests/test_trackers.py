"""Trackers, with stand-ins for packages that are not installed here: what they are asked, and what they get."""

import logging
import sys
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.run import Tracking
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.trackers.open import check

CONFIG = {"optimizer": {"lr": 0.001}}
ROW = {"update": 3, "held_out/pass@1/low": 0.5, "policy/loss": -1 / 3}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch):
    """A function that replaces a tracker's library by a mock, which is also its runs, and returns it."""

    def replace(name: str) -> Mock:
        mock = Mock(**{"info.run_id": "r1"})
        for begin in (mock.init, mock.start_run, mock.SummaryWriter):
            begin.return_value = mock
        module = f"megatron_sspo.trackers.{name.rpartition('.')[2]}"
        for key in (name, module):  # which are restored after the test
            monkeypatch.setitem(sys.modules, key, mock)
        del sys.modules[module]
        return mock

    return replace


def attempt(folder: Path, tracking: Tracking, *, first_step: int = 0) -> None:
    """Does what an attempt at a run does."""
    folder.mkdir(exist_ok=True)
    check(tracking)
    writer = metrics_files.MetricsWriter(folder, tracking, "name", CONFIG, first_step=first_step)
    writer.write(metrics_files.METRICS, ROW)
    writer.close()


def test_tensorboard_gets_the_same_numbers(tmp_path: Path, library) -> None:
    recorder = library("torch.utils.tensorboard")
    attempt(tmp_path, Tracking(tensorboard=True), first_step=2)
    recorder.SummaryWriter.assert_called_once_with(str(tmp_path / "tensorboard"), purge_step=2)
    assert recorder.add_scalar.call_args_list == [call(k, v, 3) for k, v in ROW.items() if k != "update"]


@pytest.mark.parametrize("name", ["wandb", "swanlab", "trackio"])
def test_all_attempts_at_a_run_are_one_run_of_the_tracker(tmp_path: Path, library, name: str) -> None:
    recorder = library(name)
    tracking = Tracking(wandb_project="p") if name == "wandb" else Tracking(others={name: {"project": "p"}})
    for _ in range(2):
        attempt(tmp_path, tracking)
    (_, first), (_, second) = recorder.init.call_args_list
    assert first == second and first["project"] == "p" and first["config"] == CONFIG and first["resume"] == "allow"
    assert (tmp_path / f"{name}_id").read_text() in str(first)
    values = {key: value for key, value in ROW.items() if key != "update"}
    assert recorder.log.call_args_list == [call(values, step=3)] * 2 and recorder.finish.call_count == 2


def test_mlflow_continues_its_run_and_gets_names_that_it_allows(tmp_path: Path, library) -> None:
    recorder = library("mlflow")
    for _ in range(2):
        attempt(tmp_path, Tracking(others={"mlflow": {"experiment": "e"}}))
    assert recorder.start_run.call_args_list == [call(run_name="name"), call(run_id="r1")]
    values = {"held_out/pass_1.low": 0.5, "policy/loss": -1 / 3}
    assert recorder.log_metrics.call_args == call(values, step=3, synchronous=False)
    assert recorder.end_run.call_count == 2


def test_rows_wait_for_one_of_an_earlier_update(tmp_path: Path, library) -> None:
    recorder = library("wandb")
    writer = metrics_files.MetricsWriter(tmp_path, Tracking(wandb_project="p"), "name", CONFIG, first_step=0)
    writer.hold()
    writer.write(metrics_files.METRICS, {"update": 4, "x": 1.0})
    assert not recorder.log.called and metrics_files.read(tmp_path / metrics_files.METRICS), "it is on disk"
    writer.write(metrics_files.EVALUATIONS, {"update": 3, "y": 2.0})
    writer.release()
    assert [named["step"] for _, named in recorder.log.call_args_list] == [3, 4]


@pytest.mark.parametrize("error", [ConnectionError("no answer\nat all"), SystemExit(0)])
@pytest.mark.parametrize(("part", "when"), [("log", "from update 3 on"), ("finish", "at the end")])
def test_a_tracker_that_fails_later_is_left_out(tmp_path, library, caplog, monkeypatch, part, when, error) -> None:
    monkeypatch.setattr(logging.getLogger("megatron_sspo"), "propagate", True)

    recorder, other = library("wandb"), library("trackio")
    setattr(recorder, part, Mock(side_effect=error))
    attempt(tmp_path, Tracking(wandb_project="p", others={"trackio": {"project": "p"}}))
    assert f"wandb gets no metrics {when}, because it failed" in caplog.text
    assert other.log.call_count == other.finish.call_count == 1
    assert len(metrics_files.read(tmp_path / metrics_files.METRICS)) == 1


def test_a_tracker_that_does_not_start_is_named_and_those_before_it_are_finished(tmp_path, library) -> None:
    first, second = library("wandb"), library("trackio")
    second.init.side_effect = ConnectionError("no key")
    with pytest.raises(UserError, match=r"the tracker trackio does not start \(.*no key\): set it up, or leave it out"):
        attempt(tmp_path, Tracking(wandb_project="p", others={"trackio": {"project": "p"}}))
    assert first.finish.call_count == 1


@pytest.mark.parametrize(
    ("tracking", "message"),
    [
        (Tracking(others={"mlfow": {}}), "there is no tracker named 'mlfow': choose one of mlflow, swanlab,"),
        (Tracking(others={"swanlab": {"project": "p"}}), "swanlab.*pip install 'megatron-sspo\\[tracking\\]'"),
    ],
)
def test_what_cannot_be_a_tracker_is_named_at_the_start(tracking: Tracking, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(tracking)


def test_options_that_a_tracker_does_not_have(library) -> None:
    library("swanlab")
    with pytest.raises(UserError, match="the tracker 'swanlab' has no option experiment"):
        check(Tracking(others={"swanlab": {"project": "p", "experiment": "e"}}))
