"""The launcher of a job's processes, and what is shown on the console."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megatron_sspo.processes import local, ports
from megatron_sspo.processes.console import Display
from megatron_sspo.processes.parent import describe_exit


@pytest.mark.parametrize(
    ("code", "message"),
    [(0, "ended with exit code 0"), (-9, "was killed by SIGKILL"), (-40, "was killed by signal 40")],
)
def test_how_a_process_has_ended(code: int, message: str) -> None:
    assert describe_exit(code) == message


def test_a_name_with_brackets_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display, name = Display(silent=False), "runs[/x]/a[red]"
    display.log_to(tmp_path / "log.txt")
    display.log(f"into {name}")
    display.table(name, [name], [[name]])
    assert capsys.readouterr().out.count(name) == 4
    assert (tmp_path / "log.txt").read_text().count(name) == 2


def test_a_signal_while_processes_start_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def start_after_a_signal(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*arguments, **options)

    monkeypatch.setattr(local, "_command", lambda _: ["sleep", "20"])
    monkeypatch.setattr(subprocess, "Popen", start_after_a_signal)
    assert local.launch([], 1) == 128 + signal.SIGTERM


def test_a_reserved_port_is_kept_for_the_store_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs that start at the same time would otherwise choose the same port now and then."""
    with ports.reserve_port() as reserved:
        number = reserved.getsockname()[1]
        with monkeypatch.context() as patched:
            patched.setattr(ports, "_FIRST", number)
            patched.setattr(ports, "_LAST", number + 1)
            assert {ports.free_port() for _ in range(20)} == {number + 1}
        store = dist.TCPStore("127.0.0.1", number, 1, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_a_process_that_does_not_end_after_the_others_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library of C may wait without end when a process exits, where no thread of Python runs any more."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*_: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(["sh", "-c", "exec sleep 1000" if started else "exit 0"]))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(local, "_END_SECONDS", 0.5)
    assert local.launch([], 2) == 0
    assert started[1].returncode == -signal.SIGKILL
    assert "process 1 has done its work, but has not ended" in capsys.readouterr().err
