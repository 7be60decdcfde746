"""Writing of metrics to files and trackers."""

import json
import sys
import types
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.run import Tracking
from megatron_sspo.run_folder import sinks

ROW = {"update": 3, "reward/mean": 0.1, "policy/loss": -1 / 3}


def test_a_row_is_a_line_of_json_with_every_bit(tmp_path: Path) -> None:
    out = sinks.MetricsWriter(tmp_path, Tracking(), "name", {}, first_step=0)
    out.write(sinks.METRICS, ROW)
    assert (tmp_path / "metrics.jsonl").read_text() == json.dumps(ROW) + "\n", "before close: it is on disk"
    out.write(sinks.METRICS, {"update": 4})
    out.write(sinks.EVALUATIONS, {"update": 3, "pass@1": 0.5})
    out.close()
    assert sinks.read(tmp_path / sinks.METRICS) == [ROW, {"update": 4}]
    assert sinks.read(tmp_path / sinks.EVALUATIONS) == [{"update": 3, "pass@1": 0.5}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluations.jsonl", "metrics.jsonl"]


def test_tensorboard_gets_the_same_numbers_where_asked(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sinks.check(Tracking(tensorboard=True))
    out = sinks.MetricsWriter(tmp_path, Tracking(tensorboard=True), "name", {}, first_step=0)
    out.write(sinks.METRICS, ROW)
    out.write(sinks.METRICS, {"update": 4, "policy/loss": 0.5})  # a kill follows; the newest checkpoint is of update 3
    out.close()
    out = sinks.MetricsWriter(tmp_path, Tracking(tensorboard=True), "name", {}, first_step=4)
    out.write(sinks.METRICS, {"update": 4, "policy/loss": 0.25})
    out.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["reward/mean", "policy/loss"]
    found = [(event.step, event.value) for event in events.Scalars("policy/loss")]
    assert found == [(3, pytest.approx(-1 / 3)), (4, 0.25)]


def test_all_attempts_at_a_run_are_one_run_of_weights_and_biases(tmp_path: Path, monkeypatch) -> None:
    asked = []
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **options: asked.append(options)))
    for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        folder.mkdir(exist_ok=True)
        sinks.MetricsWriter(folder, Tracking(wandb_project="x"), "name", {}, first_step=0)
    first, second, other = (options["id"] for options in asked)
    assert first == second != other and all(options["resume"] == "allow" for options in asked)


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks.check(Tracking())
    find = sinks.importlib.util.find_spec
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    with pytest.raises(UserError, match=r"wandb, which is not installed: pip install 'megatron-sspo\[tracking\]'"):
        sinks.check(Tracking(wandb_project="x"))


def test_a_folder_of_that_name_is_no_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves a folder `wandb` in its working folder, which Python treats as a package."""
    (tmp_path / "tensorboard_").mkdir()
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(UserError, match="wandb, which is not installed"):
        sinks.check(Tracking(wandb_project="x"))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no .*metrics.jsonl: is .* the folder of a run"):
        sinks.read(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n{"upd')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2 is not JSON"):
        sinks.read(tmp_path / "metrics.jsonl")


def test_rows_of_later_updates_and_half_a_row_are_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sinks.truncate_after(path, 3)
    assert not path.exists()
    rows = [f'{{"update": {number}, "x": 0.1}}\n' for number in range(5)]
    path.write_text("".join(rows) + '{"update": 5, "x"')
    sinks.truncate_after(path, 3)
    assert path.read_text() == "".join(rows[:4])
    sinks.truncate_after(path, -1)
    assert path.read_text() == ""
    path.write_text('{"update": 1}\n\0\0\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        sinks.truncate_after(path, 3)
    path.write_text('{"update": 1}\n{}\n')
    with pytest.raises(UserError, match="line 2 has no update"):
        sinks.truncate_after(path, 3)
    assert path.read_text() == '{"update": 1}\n{}\n'
