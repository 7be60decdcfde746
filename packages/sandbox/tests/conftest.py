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

from sspo_sandbox import Limits, Sandbox
from sspo_sandbox.types import MEBIBYTE

LIMITS = Limits(
    wall_seconds=2.0,
    cpu_seconds=3,  # more than the wall seconds, so that a busy loop always ends by the latter
    memory_bytes=192 * MEBIBYTE,
    processes=20,
    output_bytes=200_000,
    disk_bytes=16 * MEBIBYTE,
    open_files=64,
)
PATIENT = dataclasses.replace(LIMITS, wall_seconds=120.0, cpu_seconds=120)


@pytest.fixture(scope="session", autouse=True)
def without_bubblewrap() -> Iterator[None]:
    """Leaves out a test where it starts a sandbox, if bubblewrap is missing. In CI, which installs it, tests fail."""
    with pytest.MonkeyPatch.context() as patch:
        if shutil.which("bwrap") is None and "CI" not in os.environ:
            missing = "bubblewrap is missing (make install-sandbox)"
            patch.setattr("sspo_sandbox.sandbox.find_bubblewrap", lambda: pytest.skip(missing))
        yield


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox with short limits."""
    made = Sandbox(LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="session")
def patient() -> Iterator[Sandbox]:
    """A sandbox for programs that have to come to their end, even on a busy machine."""
    made = Sandbox(PATIENT)
    yield made
    made.close()


@pytest.fixture(scope="session")
def with_numpy() -> Iterator[Sandbox]:
    """A patient sandbox in which programs and tests may import numpy."""
    made = Sandbox(dataclasses.replace(PATIENT, memory_bytes=2048 * MEBIBYTE), packages=["numpy"])
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
    uids = {slot.uid for slot in sandbox._free} - {os.getuid()}
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            command, uid, parent = " ".join(process.cmdline()), process.uids().real, process.ppid()
        except psutil.Error:  # it has ended, or only its parent has to notice it
            continue
        is_inside = "sspo_sandbox.inside" in command and (process.pid in own or parent == 1)  # or its parent has ended
        if uid in uids or sandbox._image.folder.name in command or is_inside:
            found.append(f"{process.pid} (user {uid}): {command}")
    return found


def assert_nothing_runs(sandbox: Sandbox) -> None:
    """Checks that no process of a sandbox is left; this holds as soon as a call returns."""
    assert processes_of(sandbox) == []
    procs_files = [name for slot in sandbox._free for name in slot.procs_files]
    assert [pid for name in procs_files for pid in Path(name).read_text().split()] == []


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
