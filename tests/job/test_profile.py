"""Traces of updates, and snapshots of an exhausted GPU's memory."""

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_sspo.cli.train import _updates
from megatron_sspo.errors import UserError
from megatron_sspo.job.memory_snapshot import snapshot_on_out_of_memory
from megatron_sspo.job.profile import Profiler, check_updates


def updates(profiler: Profiler, number: int) -> dict[int, list[str]]:
    """Does so many updates, each of a multiplication; returns what is shown after each."""
    shown = {}
    for update in range(1, number + 1):
        profiler.before(update)
        with torch.profiler.record_function(f"update {update}"):
            torch.ones(64, 64) @ torch.ones(64, 64)
        shown[update] = profiler.after(update)
    return shown


def test_a_trace_has_the_updates_that_are_named_and_no_others(tmp_path: Path) -> None:
    shown = updates(Profiler(range(2, 4), tmp_path, rank=5), 4)
    path = tmp_path / "profile" / "updates-2-3-rank-5.json.gz"
    assert list(path.parent.iterdir()) == [path], "nothing temporary stays"
    names = {event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert {"update 2", "update 3", "aten::mm"} <= names and not {"update 1", "update 4"} & names
    assert [update for update, lines in shown.items() if lines] == [3]
    assert shown[3][0] == f"trace: {path}" and "CPU time" in shown[3][1] and len(shown[3]) <= 12
    shares = [float(line.split("%")[0]) for line in shown[3][2:]]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 101


def test_no_updates_and_an_early_end_write_nothing(tmp_path: Path) -> None:
    none = Profiler(range(0), tmp_path, rank=0)
    check_updates(range(0), 1)
    assert updates(none, 2) == {1: [], 2: []}
    early = Profiler(range(2, 4), tmp_path, rank=0)
    assert updates(early, 2) == {1: [], 2: []}
    early.close()
    early.close()
    assert list(tmp_path.iterdir()) == []


def test_updates_that_the_run_does_not_have_are_refused() -> None:
    check_updates(range(3, 11), 10)
    with pytest.raises(UserError, match="--profile names update 11, but the run has 10: choose among them"):
        check_updates(range(9, 12), 10)


def test_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert (_updates("3"), _updates("3-5")) == (range(3, 4), range(3, 6))
    for wrong in ("0", "5-3", "a", "", "1-", "-1", "0-2"):
        with pytest.raises(argparse.ArgumentTypeError, match="names no updates"):
            _updates(wrong)


def fail(device: str, folder: Path) -> torch.OutOfMemoryError:
    """Runs out of memory, and returns the error."""
    with pytest.raises(torch.OutOfMemoryError) as raised, snapshot_on_out_of_memory(torch.device(device), folder, 3):
        raise torch.OutOfMemoryError("no memory")
    return raised.value


def test_a_gpu_without_memory_leaves_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "_record_memory_history", lambda **options: recorded.append(options))
    monkeypatch.setattr(memory, "_dump_snapshot", lambda name: Path(name).write_bytes(b"a snapshot"))
    error = fail("cuda", tmp_path)
    path = tmp_path / "memory" / "rank-3.pickle"
    assert path.read_bytes() == b"a snapshot" and list(path.parent.iterdir()) == [path]
    assert str(path) in error.__notes__[0]
    assert [options.get("enabled", "all") for options in recorded] == ["all", None]
    with pytest.raises(ValueError, match="another"), snapshot_on_out_of_memory(torch.device("cuda"), tmp_path, 4):
        raise ValueError("another")
    assert list(path.parent.iterdir()) == [path]
