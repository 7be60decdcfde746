"""Writing of metrics to files, and reading them."""

import json
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.run import Tracking
from megatron_sspo.run_folder import metrics_files

ROW = {"update": 3, "reward/mean": 0.1, "policy/loss": -1 / 3}


def test_a_row_is_a_line_of_json_with_every_bit(tmp_path: Path) -> None:
    out = metrics_files.MetricsWriter(tmp_path, Tracking(), "name", {}, first_step=0)
    out.write(metrics_files.METRICS, ROW)
    assert (tmp_path / "metrics.jsonl").read_text() == json.dumps(ROW) + "\n", "before close: it is on disk"
    out.write(metrics_files.METRICS, {"update": 4})
    out.write(metrics_files.EVALUATIONS, {"update": 3, "pass@1": 0.5})
    out.close()
    assert metrics_files.read(tmp_path / metrics_files.METRICS) == [ROW, {"update": 4}]
    assert metrics_files.read(tmp_path / metrics_files.EVALUATIONS) == [{"update": 3, "pass@1": 0.5}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluations.jsonl", "metrics.jsonl"]


def test_rows_of_later_updates_and_half_a_row_are_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics_files.truncate_after(path, 3)
    assert not path.exists()
    rows = [f'{{"update": {number}, "x": 0.1}}\n' for number in range(5)]
    path.write_text("".join(rows) + '{"update": 5, "x"')
    metrics_files.truncate_after(path, 3)
    assert path.read_text() == "".join(rows[:4])
    metrics_files.truncate_after(path, -1)
    assert path.read_text() == ""
    path.write_text('{"update": 1}\n\0\0\n')
    with pytest.raises(UserError, match="line 2 is not a row"):
        metrics_files.truncate_after(path, 3)
    assert path.read_text() == '{"update": 1}\n\0\0\n'


def test_an_update_has_one_row_but_in_the_file_of_rollouts(tmp_path: Path) -> None:
    rows = [{"update": 1, "a": 0}, {"update": 2, "a": 1, "b": 3}, {"update": 2, "a": 2}]
    one = {"update": 2, "a": 2, "b": 3}
    for name, last in ((metrics_files.EVALUATIONS, [one]), (metrics_files.ROLLOUTS, rows[1:])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        metrics_files.truncate_after(tmp_path / name, 2)
        assert metrics_files.read(tmp_path / name) == [rows[0], *last]
