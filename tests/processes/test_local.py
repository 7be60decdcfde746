"""Environment variables of a job's processes, and what is shown on the console."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megatron_sspo.errors import UserError
from megatron_sspo.processes import local, ports
from megatron_sspo.processes.console import Display
from megatron_sspo.processes.parent import describe_exit

RANK_0 = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OF_A_CHILD = {"MEGATRON_SSPO_REPORT_FD": "9"}


class Stdin:
    """A standard input that is a terminal or not."""

    def __init__(self, in_a_terminal: bool) -> None:
        self._in_a_terminal = in_a_terminal

    def isatty(self) -> bool:
        return self._in_a_terminal


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    for name in (*RANK_0, *OF_A_CHILD, "OMP_NUM_THREADS", "SLURM_STEP_NUM_TASKS", "SLURM_TASK_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        RANK_0,
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"MASTER_ADDR": "127.0.0.1"},  # of a shell: `launch` sets the others
        {"OMP_NUM_THREADS": "many"},  # of OpenMP alone, which warns
        {**RANK_0, **OF_A_CHILD, "OMP_NUM_THREADS": "4,2"},
    ],
    indirect=True,
)
def test_variables_of_a_process_that_are_right(variables) -> None:
    local.check_variables()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({**RANK_0, "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two': it must be 1 or more, or not set"),
        ({**RANK_0, "WORLD_SIZE": "0"}, "WORLD_SIZE is '0': it must be 1 or more"),
        ({**RANK_0, "WORLD_SIZE": "٢"}, "WORLD_SIZE is '٢': it must be 1 or more"),
        ({**RANK_0, "WORLD_SIZE": "9" * 5000}, "it must be 1 or more, or not set"),
        ({**RANK_0, "RANK": ""}, "RANK is '': it must be 0 to 1, or not set"),
        ({**RANK_0, "RANK": "-1"}, "RANK is '-1': it must be 0 to 1"),
        ({**RANK_0, "RANK": "2"}, "RANK is '2': it must be 0 to 1"),
        ({"RANK": "2"}, "RANK is '2': it must be 0 to 0, or not set"),
        ({**RANK_0, "LOCAL_RANK": "x"}, "LOCAL_RANK is 'x': it must be 0 to 1"),
        ({**RANK_0, "MASTER_PORT": "99999"}, "MASTER_PORT is '99999': it must be 1 to 65535"),
        ({**RANK_0, "MASTER_PORT": "tcp"}, "MASTER_PORT is 'tcp': it must be 1 to 65535"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but MASTER_ADDR is not set: start the processes by"),
        ({**RANK_0, **OF_A_CHILD, "OMP_NUM_THREADS": "many"}, "OMP_NUM_THREADS is 'many': it must be 1 or more"),
    ],
    indirect=["variables"],
)
def test_a_variable_of_a_process_that_is_wrong(variables, message) -> None:
    with pytest.raises(UserError, match=message):
        local.check_variables()


@pytest.mark.parametrize(
    ("variables", "in_a_terminal"),
    [
        ({}, False),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_TASK_PID": str(os.getppid())}, True),  # a shell of srun --pty
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_TASK_PID": "1000000000"}, False),  # a sweep in such a shell
        ({**RANK_0, "SLURM_STEP_NUM_TASKS": "2", "SLURM_TASK_PID": str(os.getpid())}, False),  # a script of slurm/
    ],
    indirect=["variables"],
)
def test_a_command_that_srun_has_started_once(variables, in_a_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(in_a_terminal))
    local.check_tasks()


@pytest.mark.parametrize(
    "variables",
    [{"SLURM_STEP_NUM_TASKS": "8", "SLURM_TASK_PID": str(pid)} for pid in (os.getpid(), os.getppid())],
    indirect=True,
)
@pytest.mark.parametrize("in_a_terminal", [False, None])
def test_a_command_that_srun_has_started_eight_times(variables, in_a_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None if in_a_terminal is None else Stdin(in_a_terminal))
    with pytest.raises(UserError, match="srun has started this command 8 times"):
        local.check_tasks()


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


def test_the_port_of_the_ranks_is_kept_until_they_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def try_to_bind(*_: Any) -> int:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(found["MASTER_PORT"])))
        return 0

    found: dict[str, str] = {}
    monkeypatch.setattr(local, "_start", lambda _, variables, __: found.update(variables))
    monkeypatch.setattr(local, "_stop", lambda _: None)
    monkeypatch.setattr(local, "_wait", try_to_bind)
    assert local.launch([], 1) == 0
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(found["MASTER_PORT"])))


def test_a_process_that_does_not_end_after_the_others_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library of C may wait without end when a process exits, where no thread of Python runs any more."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sh", "-c", "exec sleep 1000" if started else "exit 0"]))
        return started[-1]

    monkeypatch.setattr(local, "_start", start)
    monkeypatch.setattr(local, "_END_SECONDS", 0.5)
    assert local.launch([], 2) == 0
    assert started[1].returncode == -signal.SIGKILL
    assert "process 1 has done its work, but has not ended" in capsys.readouterr().err
