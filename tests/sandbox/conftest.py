"""Sandboxes that the tests share, and checks that they leave nothing behind."""

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from megatron_sspo.sandbox.sandbox import Sandbox
from megatron_sspo.sandbox.types import MEBIBYTE, Limits

LIMITS = Limits(
    wall_seconds=2.0,
    cpu_seconds=3,  # more than the wall seconds, so that a busy loop always ends by the latter
    memory_bytes=192 * MEBIBYTE,
    processes=20,
    output_bytes=200_000,
    disk_bytes=16 * MEBIBYTE,
    open_files=64,
)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox with short limits. Without bubblewrap it raises a UserError: the tests fail, and are not skipped."""
    made = Sandbox(LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="session")
def patient() -> Iterator[Sandbox]:
    """A sandbox for programs that have to come to their end, even on a busy machine."""
    made = Sandbox(dataclasses.replace(LIMITS, wall_seconds=120.0, cpu_seconds=120))
    yield made
    made.close()


@pytest.fixture(scope="session")
def with_numpy() -> Iterator[Sandbox]:
    """A patient sandbox in which programs and tests may import numpy."""
    limits = dataclasses.replace(LIMITS, wall_seconds=120.0, cpu_seconds=120, memory_bytes=2048 * MEBIBYTE)
    made = Sandbox(limits, packages=["numpy"])
    yield made
    made.close()


@pytest.fixture(scope="module")
def public_path() -> Iterator[Path]:
    """A folder that every user of the machine may read and write, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-tests-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def processes_of(sandbox: Sandbox) -> list[str]:
    """Returns the command lines of all processes of a sandbox, without those of other tests."""
    own = {child.pid for child in psutil.Process().children(recursive=True)}
    uids = {slot.user.uid for slot in sandbox._free} - {os.getuid()}
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            status = (folder / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        uid, parent = (
            next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))
            for name in ("Uid:", "PPid:")
        )
        if "\nState:\tZ" in status and pid not in own:
            continue  # it runs no more, and only the machine's init can reap it
        is_inside = "sandbox.inside" in command and (pid in own or parent == 1)  # or its parent has ended
        if uid in uids or sandbox._image.folder.name in command or is_inside:
            found.append(f"{pid} (user {uid}): {command}")
    return found


def in_cgroups(sandbox: Sandbox) -> list[str]:
    """Returns the pids of the processes in the sandbox's control groups."""
    procs_files = [name for slot in sandbox._free for name in slot.cgroup.procs_files]
    return [pid for name in procs_files for pid in Path(name).read_text().split()]


def assert_nothing_runs(sandbox: Sandbox) -> None:
    """Checks that no process of a sandbox is left; this holds as soon as a call returns."""
    assert processes_of(sandbox) == []
    assert in_cgroups(sandbox) == []


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
