"""The file system that a sandboxed program sees: one Python, copied into a folder, and nothing else of the machine.

    /python      the interpreter, its standard library, and packages if requested
    /lib         the shared libraries that the files in /python load
    /sandbox     the code of `inside/`

There is no shell and no other program. Python is copied because interpreters are often in folders that another user
cannot read (a home folder or an environment), and because binding single files is slow.
"""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sspo_sandbox.seccomp import seccomp_filter
from sspo_sandbox.types import SandboxError

PYTHON = "/python/bin/python3"
DEVICES = ("null", "zero", "full", "random", "urandom")

_PREFIX = "sspo-sandbox-"
_EXCLUDED = shutil.ignore_patterns(
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"),
    *("pydoc_data", "config-*", "_tkinter.*", "_test*.so", "*.opt-*.pyc", "*.a"),
)
_INSPECT = """
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "executable": sys.executable, "stdlib": paths["stdlib"], "platstdlib": paths["platstdlib"],
    "version": "%d.%d" % sys.version_info[:2],
}))
"""


class Image:
    """A folder with the file system; it is kept until `close`, or removed by the next process if this one is killed.

    Args:
        python: the interpreter to copy; "" takes the one that runs this process.
        packages: names of installed distributions to copy too; their dependencies are not copied.

    Attributes:
        root: the folder that the program sees as /.
        seccomp: the file with the system call filter.

    Raises:
        SandboxError: the interpreter does not run or cannot be copied, or a distribution is not installed.
    """

    def __init__(self, python: str = "", packages: Sequence[str] = ()) -> None:
        self.folder, self._lock = _locked_folder()
        self.root, self.seccomp = self.folder / "root", self.folder / "seccomp.bpf"
        try:
            self._fill(python, packages)
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            raise SandboxError(
                f"the sandbox's Python cannot be copied to {self.folder}: {error}; free some space in "
                "TMPDIR, or set TMPDIR to another folder"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Removes the folder."""
        if self._lock >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _fill(self, python: str, packages: Sequence[str]) -> None:
        # by default the one that this process's environment was made from, which has the standard library
        self._python = python = python or os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        facts = _inspect_interpreter(python)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        if packages and facts["version"] != version:
            raise SandboxError(
                f"the sandbox's packages are copied from this Python {version}, and {python} is {facts['version']}: "
                "leave one of the two options empty"
            )
        self.seccomp.write_bytes(seccomp_filter())
        library = self.root / "python" / "lib" / f"python{facts['version']}"
        (self.root / "python" / "bin").mkdir(parents=True)
        shutil.copyfile(os.path.realpath(facts["executable"]), self.root / PYTHON[1:])
        (self.root / PYTHON[1:]).chmod(0o755)
        for folder in dict.fromkeys((facts["stdlib"], facts["platstdlib"])):
            _copy_tree(Path(folder), library)
        packages_folder = library / "site-packages"
        packages_folder.mkdir()
        for name in packages:
            _copy_distribution(name, packages_folder)
        self._copy_inside()
        self._copy_shared_libraries()
        for name in ("proc", "dev", "tmp", "etc", "usr"):
            (self.root / name).mkdir()
        for name in DEVICES:
            (self.root / "dev" / name).touch()
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            (self.root / "dev" / name).symlink_to(f"/proc/self/fd/{number}")
        for name, target in (("fd", "/proc/self/fd"), ("shm", "/tmp")):
            (self.root / "dev" / name).symlink_to(target)
        for name, target in (("lib64", "lib"), ("usr/lib", "../lib"), ("usr/lib64", "../lib")):
            (self.root / name).symlink_to(target)
        (self.root / "etc" / "passwd").write_text("sandbox:x:1000:1000::/tmp:/nologin\n", encoding="utf-8")
        mode = "u=rwX,go=rX"  # readable for every user, and writable for their owner only
        subprocess.run(["chmod", "-R", mode, str(self.root)], check=True, timeout=120)

    def _copy_inside(self) -> None:
        package = self.root / "sandbox" / "sspo_sandbox"
        _copy_tree(Path(__file__).parent / "inside", package / "inside")
        (package / "__init__.py").touch()  # empty: the real package is not in the sandbox
        # compiled with the copied interpreter, so that no sandbox has to compile
        command = [self._python, "-I", "-S", "-m", "compileall", "-q", str(self.root / "sandbox")]
        subprocess.run(command, check=True, timeout=60, env={})

    def _copy_shared_libraries(self) -> None:
        binaries = [self.root / PYTHON[1:], *self.root.rglob("*.so"), *self.root.rglob("*.so.*")]
        folder = self.root / "lib"
        folder.mkdir()
        command = ["ldd", *map(str, binaries)]  # as the dynamic loader finds them
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
        found = set(map(Path, re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", done.stdout, re.MULTILINE)))
        homes = {path.parent for path in found}
        # the C library loads libgcc_s by its name when a thread ends, so ldd does not list it
        found |= {home / "libgcc_s.so.1" for home in homes if (home / "libgcc_s.so.1").exists()}
        for path in found:
            if not path.is_relative_to(self.root):
                shutil.copyfile(path, folder / path.name)
                (folder / path.name).chmod(0o755)  # the dynamic loader has to be executable


def _locked_folder() -> tuple[Path, int]:
    """Makes a folder in TMPDIR; returns it and a descriptor that locks it until the last process that has it ends.

    Folders that nobody locks are those of killed processes, and are removed first.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or one in use
            if folder.lstat().st_uid == os.geteuid():
                lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):  # another process removed it before it was locked: try again
            folder.chmod(0o755)
            lock = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks, where abandoned folders stay
                fcntl.flock(lock, fcntl.LOCK_SH)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def _inspect_interpreter(python: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", _INSPECT], capture_output=True, encoding="utf-8", timeout=60, check=True, env={}
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(
            f"the sandbox's Python {python} does not run ({error}): set the option python to another one"
        ) from error


def _copy_tree(source: Path, destination: Path) -> None:
    shutil.copytree(source, destination, ignore=_EXCLUDED, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def modules_of(name: str) -> list[str]:
    """Returns the module with the name of a distribution, or else all of its modules that have a name of their own."""
    own, title = name.lower().replace("-", "_"), _distribution(name).metadata["Name"]
    all_modules = importlib.metadata.packages_distributions().items()
    found = [module for module, names in all_modules if title in names and not module.startswith(("_", "test"))]
    return [own] if own in found or not found else [module for module in found if module.isidentifier()]


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise SandboxError(f"the sandbox's package {name!r} is not installed here: pip install {name}") from error


def _copy_distribution(name: str, destination: Path) -> None:
    for file in _distribution(name).files or ():
        source = Path(str(file.locate()))
        if source.is_file() and ".." not in file.parts:  # such as a script in bin/
            (destination / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, destination / file)
