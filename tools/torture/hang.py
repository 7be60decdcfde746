"""Stacks of the processes of a run that hangs."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil


def stacks(processes: Iterable[psutil.Process]) -> str:
    """Returns where each process waits in the kernel, and its Python stack if py-spy is in PATH."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            found.append(f"=== {process.pid} ({process.status()}) {' '.join(process.cmdline())[:200]}")
            found.append(f"in the kernel: {Path(f'/proc/{process.pid}/wchan').read_text(encoding='utf-8')}")
            if spy := shutil.which("py-spy"):
                found.append(_run(spy, "dump", "--nonblocking", "--pid", str(process.pid)))
    return "\n".join(found)


def _run(*command: str) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=20, check=False).stdout
    return "no answer within 20 s"
