"""Locks against two runs in one folder."""

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.run_folder import lock as run_lock
from megatron_sspo.run_folder.lock import RunLock

_HOLD = """
import os, sys, time
from pathlib import Path
from megatron_sspo.run_folder.lock import RunLock

with RunLock(Path(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        print("held", flush=True)
        time.sleep(600)  # a child that outlives its parent
        os._exit(0)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def holder(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """Starts a process that holds the lock and has a child process."""
    command = [sys.executable, "-c", _HOLD, str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        assert process.stdout and process.stdout.readline() == "held\n"
        child = int(children.read_text().split()[0])
        try:
            yield process
        finally:
            os.kill(child, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_and_told_who_has_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as process:
        for _ in range(2):
            with pytest.raises(UserError, match=rf"in use by a run, process {process.pid} on {socket.gethostname()}:"):
                RunLock(tmp_path / "run").__enter__()
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()  # its child has its standard output, and lives on
        with RunLock(tmp_path / "run"):
            # `evaluate --output` recognizes its own folders by this name
            assert [path.name for path in (tmp_path / "run").iterdir()] == [".run.lock"]


def test_a_killed_process_loses_the_lock_although_its_child_lives(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as process:
        process.kill()
        process.wait()
        with RunLock(tmp_path / "run"), pytest.raises(UserError, match=rf"process {os.getpid()} on"):
            RunLock(tmp_path / "run").__enter__()


def test_a_folder_that_was_removed_or_replaced(tmp_path: Path) -> None:
    """The folder of a running run, in which another run may have begun: the two would write into the same files."""
    folder = tmp_path / "run"
    with RunLock(folder) as lock:
        lock.check()
        shutil.move(folder, tmp_path / "moved")
        with pytest.raises(UserError, match=f"{folder} or its lock was removed or replaced while a run wrote into it:"):
            lock.check()
        with RunLock(folder), pytest.raises(UserError, match="removed or replaced"):
            lock.check()
        shutil.rmtree(folder)
        folder.symlink_to("moved")  # the disk was full, for example: it is still this run's
        lock.check()


def test_a_file_system_without_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    said: list[str] = []
    monkeypatch.setattr(run_lock.fcntl, "flock", missing)
    monkeypatch.setattr(run_lock.LOGGER, "warning", said.append)
    with RunLock(tmp_path) as lock:
        lock.check()
    assert said == [f"the file system of {tmp_path} has no flock: do not start a second run in this folder"]
