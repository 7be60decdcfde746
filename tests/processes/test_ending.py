"""Threads and processes that user code leaves behind do not keep a command from ending."""

import subprocess
import sys

import pytest

_PROGRAM = """
import concurrent.futures, multiprocessing, sys, threading, time
from megatron_sspo.cli import command_line
from megatron_sspo.processes import ending

ending._END_SECONDS = 1.0

def run(_):
    LEAVE
    FINISH

command_line._run = run
sys.exit(command_line.run())
"""
_LEFT = {
    "thread": "threading.Thread(target=time.sleep, args=(1000,), name='sleeper').start()",
    "executor": "concurrent.futures.ThreadPoolExecutor(1, 'sleeper').submit(time.sleep, 1000)",
    "process": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,), name='sleeper').start()",
}


@pytest.mark.parametrize(
    ("left", "end", "code"),
    [
        *((left, "return 0", 0) for left in _LEFT),
        ("thread", "sys.exit(85)", 85),
        ("thread", "raise ValueError('broken')", 1),
    ],
)
def test_what_user_code_leaves_does_not_delay_the_end(left: str, end: str, code: int) -> None:
    program = _PROGRAM.replace("LEAVE", _LEFT[left]).replace("FINISH", end)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code, done.stderr
    assert "sleeper" in done.stderr and "did not end within 1 s" in done.stderr


def test_a_command_that_leaves_nothing_starts_no_thread() -> None:
    program = _PROGRAM.replace("LEAVE", "pass").replace("FINISH", "return 0")
    program = program.replace(
        "sys.exit(command_line.run())", "command_line.run(); assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_a_program_that_calls_the_command_line_as_a_function_goes_on() -> None:
    program = _PROGRAM.replace("LEAVE", _LEFT["thread"]).replace("FINISH", "return 0")
    program = program.replace(
        "sys.exit(command_line.run())", "command_line.run(); time.sleep(3); print('went on', flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "went on\n" and "sleeper" in done.stderr


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("os._exit(0)", 1),
        ("os._exit(7)", 7),
        ("pid = os.fork() or os._exit(0); sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + 3)", 3),
        ("pass", 0),
    ],
)
def test_a_process_that_is_left_before_its_work_is_done_has_failed(body: str, code: int) -> None:
    program = (
        f"import os, sys\nfrom megatron_sspo.processes.ending import unfinished\nwith unfinished(): {body}\nos._exit(0)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == code
