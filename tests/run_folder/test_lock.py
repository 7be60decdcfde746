"""Locks against two runs in one folder."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.run_folder import lock as run_lock
from megatron_sspo.run_folder.lock import RunLock

_HOLD = """
import errno, fcntl, os, sys, time
from pathlib import Path
from megatron_sspo.run_folder.lock import RunLock

def missing(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")

if sys.argv[2] == "without":
    fcntl.flock = missing
with RunLock(Path(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        print("held", flush=True)
        time.sleep(600)  # a child that outlives its parent
        os._exit(0)
    sys.stdin.readline()
"""


@pytest.fixture(params=["with", "without"])
def flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with or without flock."""

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if request.param == "without":
        monkeypatch.setattr(run_lock.fcntl, "flock", missing)
    return request.param


@contextlib.contextmanager
def holder(folder: Path, flock: str) -> "Iterator[subprocess.Popen[str]]":
    """Starts a process that holds the lock and has a child process."""
    command = [sys.executable, "-c", _HOLD, str(folder), flock]
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


def test_a_second_process_is_refused_and_told_who_has_the_folder(tmp_path: Path, flock: str) -> None:
    with holder(tmp_path / "run", flock) as process:
        for _ in range(2):
            with pytest.raises(UserError, match=rf"in use by a run, process {process.pid} on {socket.gethostname()}:"):
                RunLock(tmp_path / "run").__enter__()
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()
        with RunLock(tmp_path / "run"):
            pass


def test_a_killed_process_loses_the_lock_although_its_child_lives(tmp_path: Path, flock: str) -> None:
    with holder(tmp_path / "run", flock) as process:
        process.kill()
        process.wait()
        with RunLock(tmp_path / "run"), pytest.raises(UserError, match=rf"process {os.getpid()} on"):
            RunLock(tmp_path / "run").__enter__()


def test_the_lock_is_free_again_after_each_holder(tmp_path: Path, flock: str) -> None:
    for _ in range(3):
        with RunLock(tmp_path / "a" / "run"):
            assert list((tmp_path / "a" / "run").iterdir())
    with pytest.raises(RuntimeError), RunLock(tmp_path / "run"):
        raise RuntimeError
    with RunLock(tmp_path / "run"):
        pass


def test_a_folder_that_another_process_has_taken_over(tmp_path: Path, flock: str) -> None:
    """Removed in the middle of a run, and then the folder of a new run: the two would write into the same files."""
    folder = tmp_path / "run"
    with RunLock(folder) as lock:
        lock.check()
        shutil.copytree(folder, tmp_path / "moved")
        shutil.rmtree(folder)
        with pytest.raises(UserError, match=f"{folder} or its lock was removed or replaced while a run wrote into it:"):
            lock.check()
        with (
            holder(folder, flock) as process,
            pytest.raises(UserError, match=rf"process {process.pid} .* has it"),
        ):
            lock.check()
        shutil.rmtree(folder)
        folder.symlink_to("moved")  # the disk was full, for example: it is still this run's
        lock.check()


@pytest.mark.parametrize("name", [".run.lock", ".run.holder"])
@pytest.mark.parametrize("kind", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_lock_that_is_not_a_file(tmp_path: Path, flock: str, name: str, kind: Callable[[Path], None]) -> None:
    kind(tmp_path / name)
    with contextlib.suppress(UserError), RunLock(tmp_path, watch_seconds=0.1) as lock, contextlib.suppress(UserError):
        lock.check()


@pytest.mark.parametrize("flock", ["without"], indirect=True)
class TestHolderFiles:
    """Detection of dead holders without flock."""

    def write_holder(self, folder: Path, **fields: object) -> Path:
        path = folder / ".run.holder"
        path.write_text(json.dumps({**run_lock._this_process(), "token": "t", "beat": "0", **fields}))
        return path

    @pytest.mark.parametrize(
        "changes", [{"pid": 2**22 + 1}, {"started": "1"}, {"boot": "another"}, {"host": "another"}]
    )
    def test_a_dead_holder_loses_the_lock(self, tmp_path: Path, flock: str, changes: dict[str, object]) -> None:
        """A pid that is free or now belongs to another process, an earlier boot, another machine without new counts."""
        self.write_holder(tmp_path, **changes)
        with RunLock(tmp_path, watch_seconds=0.5):
            assert json.loads((tmp_path / ".run.holder").read_text())["pid"] == os.getpid()
        assert not list(tmp_path.glob(".run.holder*"))

    @pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{"])
    def test_an_unreadable_holder_file_does_not_hold_the_lock(self, tmp_path: Path, flock: str, content: bytes) -> None:
        (tmp_path / ".run.holder").write_bytes(content)
        with RunLock(tmp_path, watch_seconds=0.5):
            pass

    def test_a_live_holder_on_another_machine_keeps_the_lock(
        self, tmp_path: Path, flock: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = self.write_holder(tmp_path, host="another", pid=7)

        def sleep(seconds: float) -> None:
            self.write_holder(tmp_path, host="another", pid=7, beat="1")

        monkeypatch.setattr(run_lock.time, "sleep", sleep)
        with pytest.raises(UserError, match="in use by a run, process 7 on another:"):
            RunLock(tmp_path).__enter__()
        assert json.loads(path.read_text())["pid"] == 7


def test_folders_that_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / ".run.lock").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / ".run.lock").symlink_to(tmp_path / "file")
    for folder in (tmp_path / "file", tmp_path / "odd", tmp_path / "link"):
        with pytest.raises(UserError, match=r"cannot use .*: "):
            RunLock(folder).__enter__()


def test_the_lock_file_has_the_name_of_a_runs_lock(tmp_path: Path) -> None:
    """`evaluate --output` recognizes its own folders by the name of their lock file."""
    with RunLock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".run.lock"]
