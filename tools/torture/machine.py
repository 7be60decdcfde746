"""What the faults change of the machine: the run's disk, its clock, and how long a flush takes."""

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

DISK_BYTES = 256 * 1024**2
_INSIDE = "TORTURE_NAMESPACE"  # set in the process that has mounts of its own


def enter_namespace(output: Path) -> None:
    """Goes on in a mount namespace, where this process may mount: everything in it is gone with the last process.

    A machine that does not allow it goes on as it is, and the kinds of fault that need it are reported as not run.
    """
    if _INSIDE in os.environ or os.geteuid() != 0 or shutil.which("unshare") is None:
        return
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        return
    os.environ[_INSIDE] = str(output)
    os.execvp("unshare", [*unshare, sys.executable, "-m", "tools.torture", *sys.argv[1:]])


def may_mount() -> bool:
    """Whether this process has mounts of its own."""
    return _INSIDE in os.environ


class Disk:
    """The disk of a run: a small tmpfs where this process may mount, else a plain folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir(parents=True)
        if may_mount():
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))

    def fill(self) -> None:
        """Leaves no room for a byte."""
        with self._ballast.open("wb") as file:
            left = shutil.disk_usage(self.folder).free
            try:
                os.posix_fallocate(file.fileno(), 0, left)
                while True:
                    file.seek(0, os.SEEK_END)
                    file.write(bytes(4096))
                    file.flush()
            except OSError:
                pass

    def empty(self) -> None:
        """Gives the room back."""
        self._ballast.unlink(missing_ok=True)

    def refuse_writes(self, folder: Path) -> None:
        """Makes a folder read-only, for root too: new files and changed ones are refused."""
        _run("mount", "--bind", str(folder), str(folder))
        _run("mount", "-o", "remount,bind,ro", str(folder))

    def allow_writes(self, folder: Path) -> None:
        """The reverse."""
        _run("umount", "--lazy", str(folder))

    def close(self) -> None:
        """Unmounts it, and what it held is gone."""
        if may_mount():
            _run("umount", "--lazy", str(self.folder))


class Shim:
    """The library that a run is started with, and the file by which it is told what to do."""

    def __init__(self, folder: Path) -> None:
        self._library, self._control = folder / "shim.so", folder / "shim.control"
        self._offset = self._delay = 0.0
        self.works = shutil.which("gcc") is not None
        if self.works:
            source = Path(__file__).with_name("shim.c")
            _run("gcc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl")
        self._control.write_bytes(bytes(16))

    def environment(self) -> dict[str, str]:
        """What a run is to be started with."""
        return {"LD_PRELOAD": str(self._library), "TORTURE_SHIM": str(self._control)} if self.works else {}

    def jump(self, seconds: float) -> None:
        """Puts the wall clock of all processes that many seconds off; 0 puts it right."""
        self._offset = seconds
        self._write()

    def slow_down(self, seconds: float) -> None:
        """Makes every flush to the disk take that much longer."""
        self._delay = seconds
        self._write()

    def _write(self) -> None:
        with self._control.open("r+b") as file:  # in place, because it is mapped
            file.write(struct.pack("qq", int(self._offset * 1e9), int(self._delay * 1e9)))


def private_folders(output: Path) -> None:
    """Gives this namespace a /dev/shm, and where possible a /tmp, that are empty: what is left there is the run's."""
    if not may_mount():
        return
    _run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    inside = [output, Path(__file__), Path(sys.prefix), Path.cwd()]
    if not any(path.resolve().is_relative_to("/tmp") for path in inside):
        _run("mount", "-t", "tmpfs", "tmpfs", "/tmp")


def be_reaper() -> None:
    """Makes this process the parent of what a run leaves behind, so that it does not stay as a zombie of nobody's."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
