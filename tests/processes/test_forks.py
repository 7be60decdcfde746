"""Forks of a process, and which processes may be forked."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from megatron_sspo.processes.forks import may_fork, without_threads


def in_new_process(program: str) -> str:
    """Runs a program without threads of pytest's, and returns what it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", [0, 3])
def test_a_fork_ends_with_the_exit_code_of_what_it_runs(code: int) -> None:
    program = f"from megatron_sspo.processes.forks import fork; print(fork(lambda: {code}, 'rank 0').wait())"
    assert in_new_process(program) == f"{code}\n"


def test_a_fork_has_a_title_and_dies_with_its_parent() -> None:
    program = """
import os, time
from megatron_sspo.processes.forks import fork
made = fork(lambda: time.sleep(100), "rank 7")
print(made._pid, flush=True)
while open(f"/proc/{made._pid}/comm").read() != "rank 7\\n":
    time.sleep(0.01)
print("named", flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "named\n"
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_process_with_a_thread_is_not_forked() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not may_fork()
    finally:
        done.set()
        thread.join()


def test_parallel_work_before_the_forks_starts_no_threads() -> None:
    """The first parallel loop outside would start torch's threads."""
    program = """
import os
from megatron_sspo.processes.surroundings import prepare_process
prepare_process()
import torch
from megatron_sspo.processes.forks import may_fork, without_threads
with without_threads():
    torch.randn(512, 512) @ torch.randn(512, 512)
    print(may_fork())
torch.set_num_threads(2)
torch.randn(512, 512) @ torch.randn(512, 512)
print(may_fork())
"""
    assert in_new_process(program) == "True\nFalse\n"


def test_the_number_of_threads_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for value in (None, "true"):
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        if value is not None:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", value)
        before = torch.get_num_threads()
        with without_threads():
            assert torch.get_num_threads() == 1
            assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        assert torch.get_num_threads() == before
        assert os.environ.get("TOKENIZERS_PARALLELISM") == value
