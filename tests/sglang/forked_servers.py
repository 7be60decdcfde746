"""SGLang servers that are forked from a process with SGLang, because its imports take fifteen seconds of a core."""

import contextlib
import json
import os
import select
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from megatron_sspo.rollout.servers import process, server_program
from tests.sglang import preloaded_server

# Variables that SGLang reads at each start and not when it is imported.
_OF_A_SERVER = (
    *("TMPDIR", server_program.TMP, server_program.KEY, server_program.PARENT),
    *("SGLANG_CPU_OMP_THREADS_BIND", "PYTEST_CURRENT_TEST"),
)


class _Preloaded:
    """A process that has imported SGLang with an environment."""

    def __init__(self, python: str, environment: dict[str, str]) -> None:
        self._own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self.process = subprocess.Popen(
                [python, preloaded_server.__file__, str(its.fileno())], env=environment, pass_fds=[its.fileno()]
            )

    def start(self, arguments: Sequence[str], environment: dict[str, str], output: int, pipe: int) -> int:
        """Starts a script, and returns the number of its process."""
        request = {"arguments": arguments, "environment": environment}
        socket.send_fds(self._own, [json.dumps(request).encode()], [output, pipe])
        return int(self._own.recv(100))

    def close(self) -> None:
        """Kills the process, and with it the servers that are left."""
        self._own.close()
        self.process.kill()
        self.process.wait()


class _Forked:
    """A server process, with a part of the interface of `subprocess.Popen`."""

    def __init__(
        self, preloaded: _Preloaded, arguments: Sequence[str], environment: dict[str, str], output: int
    ) -> None:
        self._code, pipe = os.pipe()
        environment[server_program.PARENT] = str(preloaded.process.pid)
        self.pid = preloaded.start(arguments, environment, output, pipe)
        os.close(pipe)
        self._arguments, self.returncode = arguments, None

    def poll(self) -> int | None:
        """Returns the exit code, or −n after signal n; None while the process runs."""
        return self.wait() if self.returncode is None and not _is_running(self.pid) else self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        if self.returncode is None:
            if not select.select([self._code], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
            self.returncode = int(os.read(self._code, 100))
            os.close(self._code)
        return self.returncode


def _is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


@contextlib.contextmanager
def forked_servers() -> Iterator[None]:
    """Makes `ServerProcess` fork servers of SGLang."""
    found: dict[tuple[str, ...], _Preloaded] = {}

    def popen(command: Sequence[str], *, env: dict[str, str], stdout: Any, **options: Any) -> Any:
        python, *arguments = command
        if arguments[:2] != [server_program.__file__, "sglang.launch_server"]:
            return subprocess.Popen(command, env=env, stdout=stdout, **options)
        common = {name: value for name, value in env.items() if name not in _OF_A_SERVER}
        key = (python, *sorted(f"{name}={value}" for name, value in common.items()))
        if key not in found:
            found[key] = _Preloaded(python, common)
        return _Forked(found[key], arguments, env, stdout.fileno())

    original = process.subprocess
    process.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})  # pyright: ignore
    try:
        yield
    finally:
        process.subprocess = original
        for preloaded in found.values():
            preloaded.close()
