"""Finds the processes of a run by a mark in their environment, and their roles."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

TOKEN = "TORTURE_TOKEN"


class Processes:
    """All processes started with a token, directly or indirectly, and those in the sandbox, which have no environment.

    Args:
        token: the mark.
        tmp: the run's TMPDIR, which contains the sandbox's Python; this identifies a process in the sandbox.
    """

    def __init__(self, token: str, tmp: Path) -> None:
        self._mark = f"{TOKEN}={token}\0".encode()
        self._tmp = str(tmp).encode()
        self._known: set[tuple[int, float]] = set()  # (pid, start); keeps processes that rename themselves
        self._groups: set[int] = set()  # process groups of the run: a forked worker that renames itself loses its mark

    def alive(self) -> list[psutil.Process]:
        """Returns all of these processes except zombies."""
        found, known = [], set()
        living = [process for process in psutil.process_iter() if _is_alive(process)]
        for process in sorted(living, key=_is_group_member):  # leaders first: they decide about their groups
            with contextlib.suppress(psutil.Error, OSError):
                key = (process.pid, process.create_time())
                if key in self._known or os.getpgid(process.pid) in self._groups or self._is_marked(process.pid):
                    known.add(key)
                    found.append(process)
                    if not _is_group_member(process):
                        self._groups.add(process.pid)
        self._known = known
        return found

    def of_role(self, *roles: str) -> list[psutil.Process]:
        """Returns the processes with one of these roles, oldest first."""
        found = []
        for process in self.alive():
            with contextlib.suppress(psutil.Error, OSError):
                if role_of(process) in roles:
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def end_all(self) -> None:
        """Kills all processes that are left."""
        for _ in range(3):
            left = self.alive()
            send(left, signal.SIGKILL)
            if not left:
                return
            time.sleep(0.3)

    def _is_marked(self, pid: int) -> bool:
        folder = Path("/proc") / str(pid)
        with contextlib.suppress(OSError):
            if self._mark in (folder / "environ").read_bytes():
                return True
            if os.readlink(folder / "ns" / "pid") != os.readlink("/proc/self/ns/pid"):
                return self._tmp in (folder / "mountinfo").read_bytes()
            return self._tmp in (folder / "cmdline").read_bytes() and b"bwrap" in (folder / "cmdline").read_bytes()
        return False


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _is_group_member(process: psutil.Process) -> bool:
    """Returns whether a process is not the leader of its process group."""
    with contextlib.suppress(OSError):
        return os.getpgid(process.pid) != process.pid
    return True


def role_of(process: psutil.Process) -> str:
    """Returns launcher, rank 0, rank 1, writer, server, scheduler, detokenizer, router, serve, bwrap, judge or "".

    Raises:
        psutil.Error: the process has ended.
    """
    words = process.cmdline()
    line = " ".join(words)
    if "bwrap" in line and "--json-status-fd" in line:
        return "bwrap"
    if words and words[0].startswith("/python/bin"):
        return "judge" if _is_init(process.pid) else ""  # not the judged program, which could also kill itself
    if "sglang::scheduler" in line:
        return "scheduler"
    if "sglang::detokenizer" in line:
        return "detokenizer"
    if "server_program.py" in line and "sglang" in line:
        return _of_server(process, line)
    if "megatron_sspo" not in line or " train " not in f"{line} ":
        return "serve" if "megatron_sspo serve" in line else ""
    parent = process.parent()
    if parent is not None and parent.cmdline() == words and _rank_of(parent):
        return "writer"
    return _rank_of(process) or "launcher"


def _rank_of(process: psutil.Process) -> str:
    """Returns the name of a rank: a fork of the launcher has it as its title, another one in its environment."""
    title = Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8").strip()
    if title.startswith("rank "):
        return title
    rank = process.environ().get("RANK")
    return "" if rank is None else f"rank {rank}"


def _is_init(pid: int) -> bool:
    """Returns whether a process is the first one of a sandbox."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return status.partition("NSpid:")[2].partition("\n")[0].split()[-1] == "1"


def _of_server(process: psutil.Process, line: str) -> str:
    parent = process.parent()
    if parent is not None and "server_program.py" in " ".join(parent.cmdline()):
        return ""  # the watcher process of a server
    return "router" if "sglang_router" in line else "server"


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """Returns a process and all its descendants."""
    with contextlib.suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return [process]


def send(processes: Iterable[psutil.Process], number: int) -> int:
    """Sends a signal to processes; returns how many of them received it."""
    count = 0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(number)
            count += 1
    return count


def describe(processes: Iterable[psutil.Process]) -> list[str]:
    """Returns pid and command line of each process for the report."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            found.append(f"{process.pid} {' '.join(process.cmdline())[:160]}")
    return found
