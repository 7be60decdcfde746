"""SGLang servers that outlive a run, as on separate nodes: `megatron-sspo serve`, restarted if it ends."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tools.torture.life import ROOT

NUM_SERVERS = 2
START_SECONDS = 300.0  # timeout for the start of servers on a busy machine


class Servers:
    """Two servers and the `serve` process that supervises them.

    Args:
        folder: the folder for their logs and their file `urls`.
        environment: environment variables for the process.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = _free_port_pair()
        self.key = secrets.token_urlsafe(16)
        self._environment = {**os.environ, **environment, "MEGATRON_SSPO_SERVER_KEY": self.key}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.port + number}" for number in range(NUM_SERVERS)]

    def ensure_running(self) -> None:
        """Starts the process if it does not run, as a job script or a user would."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = self.start(self.port)

    def start(self, port: int) -> "subprocess.Popen[bytes]":
        """Starts `megatron-sspo serve` at a port."""
        command = [sys.executable, "-m", "megatron_sspo", "serve", "tools/torture/recipe.py:served"]
        with (self.folder / "serve.out").open("a", encoding="utf-8") as output:
            return subprocess.Popen(
                [*command, "--folder", str(self.folder), "--port", str(port)],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def await_ready(self, seconds: float) -> bool:
        """Waits until all servers answer; returns False after `seconds`."""
        deadline = time.monotonic() + seconds
        while not (self.folder / "urls").exists():
            self.ensure_running()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def await_answers(self, seconds: float) -> None:
        """Waits until every server answers, for at most `seconds`: `serve` may be restarting one."""
        deadline = time.monotonic() + seconds
        while not all(map(self._answers, self.urls)) and time.monotonic() < deadline:
            self.ensure_running()
            time.sleep(0.5)

    def _answers(self, url: str) -> bool:
        request = urllib.request.Request(f"{url}/get_model_info", headers={"Authorization": f"Bearer {self.key}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False

    def close(self) -> None:
        """Kills the process and with it the servers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


def _free_port_pair() -> int:
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        try:
            for number in range(NUM_SERVERS):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + number))
        except OSError:
            continue
        return port
