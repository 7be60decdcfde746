"""The SGLang processes that a run owns, servers and routers. They end with the run."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.processes.parent import describe_exit
from megatron_sspo.processes.ports import reserve_port
from megatron_sspo.rollout.servers import server_program
from megatron_sspo.rollout.servers.environment_variables import without_trainer_variables

_MAX_LOG_BYTES = 64 * 1024  # read from the end of a log
_MAX_FOLDER_BYTES = 60  # bytes: a socket's path has at most 107, and SGLang's are some 42 longer than the folder


class ServerProcess:
    """One server process on this machine.

    Args:
        python: the interpreter of the environment with SGLang.
        module: sglang.launch_server, or another module with the options --host, --port and --api-key.
        arguments: further options: {"tp_size": 2} is `--tp-size 2`, and True is a flag without a value.
        environment: further environment variables, such as CUDA_VISIBLE_DEVICES.
        log: the file for the server's output.
        key: the API key that the server requires.
        host: the address of this machine that the server listens on.
        port: the port; None takes a free one at every start.
    """

    def __init__(
        self,
        python: Path,
        module: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        *,
        log: Path,
        key: str,
        host: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        self.log = log
        self._python, self._module, self._arguments = python, module, arguments
        self._environment, self._key, self._host, self._port = environment, key, host, port
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved: socket.socket | None = None  # keeps a port of this class's choice until `stop`
        self._tmp = ""  # TMPDIR of the process, where SGLang leaves its sockets
        self._log_start = 0  # earlier bytes of the log belong to earlier processes
        self.url = ""

    def start(self) -> None:
        """Starts the process. The server answers seconds or minutes later."""
        port = self._port
        if port is None:
            self._reserved = reserve_port(self._host)
            port = self._reserved.getsockname()[1]
        self.url = f"http://{self._host}:{port}"
        given = {"host": self._host, "port": port, **self._arguments}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # Only the owner may read the log, because SGLang writes its options there, with the key.
        with open(self.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            self._log_start = output.tell()
            self._tmp = tempfile.mkdtemp(prefix="megatron-sspo-server-", dir=_folder_for_sockets())
            self._process = subprocess.Popen(
                [str(self._python), server_program.__file__, self._module, *command_line(given)],
                env={
                    **without_trainer_variables(os.environ),
                    "OMP_NUM_THREADS": "1",  # larger thread pools busy-wait on cores that the trainer needs
                    "TORCHINDUCTOR_CACHE_DIR": _compile_cache(),
                    **self._environment,
                    "TMPDIR": self._tmp,
                    server_program.TMP: self._tmp,
                    server_program.KEY: self._key,
                    server_program.PARENT: str(os.getpid()),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the trainer, and `stop` kills the whole process group
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Returns whether the process was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def exit_message(self) -> str:
        """Returns how the process ended, with the last lines of its log; "" while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        return f"the server {self.url} {describe_exit(code)}; the end of {self.log}: {self.last_lines()}"

    def last_lines(self, count: int = 5) -> str:
        """Returns the last lines of this process's part of the log, as one line."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _MAX_LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            return " | ".join(line.strip() for line in lines[-count:] if line.strip()).replace(self._key, "***")
        return ""

    def stop(self) -> None:
        """Kills the process and its children at once, since the server has nothing to save."""
        if self._reserved is not None:
            self._reserved.close()
        if self._process is None:
            return
        server_program.kill_group(self._process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=server_program.KILL_SECONDS)
        self._process = None
        server_program.clean_up(self._tmp)  # the process's own watcher may be dead, too


def _folder_for_sockets() -> str:
    """Returns the temporary folder, or /tmp where the path of a socket below it would be too long for Linux."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES else "/tmp"


def _compile_cache() -> str:
    """Returns torch's compile cache folder, as it would be without the server's own TMPDIR."""
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return given or os.path.join(tempfile.gettempdir(), f"torchinductor_{os.geteuid()}")


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Converts {"tp_size": 2, "skip_warmup": True} to --tp-size 2 --skip-warmup.

    A mapping becomes JSON. False and None leave an option out; {"no_skip_warmup": True} is --no-skip-warmup.
    """
    found: list[str] = []
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            found.append(option)
        elif isinstance(value, Mapping):
            found += [option, json.dumps(value)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found += [option, *map(str, value)]
        elif value is not False and value is not None:
            found += [option, str(value)]
    return found


def find_python(given: str | None) -> Path:
    """Returns the interpreter with SGLang: the given one, or `.venv-sglang`'s in the working folder or checkout."""
    found = [folder / ".venv-sglang" / "bin" / "python" for folder in (Path.cwd(), Path(__file__).parents[3])]
    python = Path(shutil.which(given) or given) if given else next((path for path in found if path.exists()), found[0])
    if not python.exists():
        raise UserError(
            f"there is no {python} to run SGLang's server: `make install-sglang` creates an environment for CPUs in "
            "a checkout of this project; elsewhere, set rollouts.options.python to an interpreter that has sglang"
        )
    return python
