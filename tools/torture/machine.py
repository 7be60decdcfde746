"""The parts of the machine that faults change: the run's disk, its clock, and the duration of an fsync."""

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

DISK_BYTES = 256 * 1024**2
_BUSY_SECONDS = 10.0  # timeout for the files of a folder to be closed
_INSIDE = "TORTURE_NAMESPACE"  # set in the process that has its own mount namespace


def enter_namespace(output: Path) -> None:
    """Restarts this program in a mount namespace, where it may mount; its mounts end with its last process.

    If the machine does not allow this, the program continues, and the faults that need it are reported as not run.
    """
    if _INSIDE in os.environ or os.geteuid() != 0 or shutil.which("unshare") is None:
        return
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        return
    os.environ[_INSIDE] = str(output)
    os.execvp("unshare", [*unshare, sys.executable, "-m", "tools.torture", *sys.argv[1:]])


def may_mount() -> bool:
    """Returns whether this process has its own mount namespace."""
    return _INSIDE in os.environ


class Disk:
    """The disk of a run: a small tmpfs if this process may mount, otherwise a plain folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir(parents=True)
        if may_mount():
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))

    def fill(self) -> None:
        """Fills the disk completely."""
        with suppress(OSError), self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self.folder).free)
            while True:
                file.seek(0, os.SEEK_END)
                file.write(bytes(4096))
                file.flush()

    def empty(self) -> None:
        """Frees the space again."""
        self._ballast.unlink(missing_ok=True)

    def refuse_writes(self, folder: Path) -> None:
        """Makes a folder read-only, for root too: files can be neither made nor changed."""
        _run("mount", "--bind", str(folder), str(folder))
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                return _run("mount", "-o", "remount,bind,ro", str(folder))
            except RuntimeError:  # a file was opened for writing after the line above, and is still open
                if time.monotonic() > deadline:
                    self.allow_writes(folder)
                    raise
            time.sleep(0.01)

    def allow_writes(self, folder: Path) -> None:
        """Makes the folder writable again."""
        _run("umount", "--lazy", str(folder))

    def close(self) -> None:
        """Unmounts the disk, which deletes its content."""
        if may_mount():
            _run("umount", "--lazy", str(self.folder))


class Shim:
    """The preloaded library of a run, and the file that controls it."""

    def __init__(self, folder: Path) -> None:
        self._library, self._control = folder / "shim.so", folder / "shim.control"
        self._offset = self._delay = 0.0
        self.works = shutil.which("gcc") is not None
        if self.works:
            source = Path(__file__).with_name("shim.c")
            _run("gcc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl")
        self._control.write_bytes(bytes(16))

    def environment(self) -> dict[str, str]:
        """Returns the environment variables that load the library in a run."""
        return {"LD_PRELOAD": str(self._library), "TORTURE_SHIM": str(self._control)} if self.works else {}

    def jump(self, seconds: float) -> None:
        """Changes the wall clock of all processes by some seconds; 0 corrects it."""
        self._offset = seconds
        self._write()

    def slow_down(self, seconds: float) -> None:
        """Makes every fsync take `seconds` longer."""
        self._delay = seconds
        self._write()

    def _write(self) -> None:
        with self._control.open("r+b") as file:  # in place, because processes have mapped this file
            file.write(struct.pack("qq", int(self._offset * 1e9), int(self._delay * 1e9)))


def private_folders(output: Path) -> None:
    """Mounts an empty /dev/shm, and if possible an empty /tmp, so that files left there come from the run."""
    if not may_mount():
        return
    _run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    inside = [output, Path(__file__), Path(sys.prefix), Path.cwd()]
    if not any(path.resolve().is_relative_to("/tmp") for path in inside):
        _run("mount", "-t", "tmpfs", "tmpfs", "/tmp")


def become_subreaper() -> None:
    """Makes this process the parent of orphaned processes of a run, so that they do not stay as zombies."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
