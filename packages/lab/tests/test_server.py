"""The server of the live page: what it answers, and whom."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.__main__ import main
from packages.lab.tests.folders import append
from packages.lab.tests.runs import HOSTILE, metrics, serving, write_run


def ask(
    address: str, path: str, method: str = "GET", **headers: str
) -> tuple[HTTPResponse | urllib.error.HTTPError, str]:
    """Returns the answer to one request, and its text."""
    request = urllib.request.Request(address.rstrip("/") + path, method=method, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        return response, response.read().decode()


def test_rows_and_then_only_new_rows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3)
    with serving([run]) as address:
        first, text = ask(address, "/metrics?run=0&known=")
        assert [json.loads(line) for line in text.splitlines()] == [metrics(n) for n in (1, 2, 3)]
        append(run, metrics(4))
        _, text = ask(address, f"/metrics?run=0&known={first.headers['X-Known']}")
        assert json.loads(text) == metrics(4)
        assert json.loads(ask(address, "/evaluations?run=0")[1])["gsm8k/pass@1"] == 0.5
        assert json.loads(ask(address, "/runs")[1]) == [{"name": "run", "num_updates": 100}]


@pytest.mark.parametrize("path", ["/rollouts", "/answers"])
def test_responses_come_once_per_version_and_never_as_html(tmp_path: Path, path: str) -> None:
    run = write_run(tmp_path / "run", 3, text=HOSTILE)
    with serving([run]) as address:
        first, text = ask(address, f"{path}?run=0")
        assert json.loads(text)["prompt"] == HOSTILE and first.headers["X-New"] == "1"
        assert first.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert first.headers["X-Content-Type-Options"] == "nosniff"
        same, text = ask(address, f"{path}?run=0&known={first.headers['X-Known']}")
        assert (same.headers["X-New"], text) == ("0", "")
        (run / "rollouts.jsonl").unlink()
        (run / "evaluation_responses.jsonl").unlink()
        gone, text = ask(address, f"{path}?run=0&known={first.headers['X-Known']}")
        assert (gone.headers["X-New"], text) == ("1", "")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving([write_run(tmp_path_factory.mktemp("runs") / "run", 1)]) as found:
        yield found


@pytest.mark.parametrize("path", ["/", "/live.js", "/live.css"])
def test_the_page_needs_no_other_server(address: str, path: str) -> None:
    response, text = ask(address, path)
    assert response.status == 200 and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        *(("/runs", "GET", host, 200) for host in ("127.0.0.1", "LOCALHOST:9999")),
        *(("/metrics?run=0", "GET", host, 403) for host in ("evil.example:8060", "127.0.0.1.evil.example", "[::1]")),
        *(("/runs", method, "localhost", 405) for method in ("POST", "PUT", "DELETE")),
        *((f"/metrics?run={run}", "GET", "localhost", 404) for run in ("", "1", "-1", "../x", "9" * 5000)),
        *((path, "GET", "localhost", 404) for path in ("/page/live.js", "/../server.py", "/%2e%2e/server.py")),
    ],
)
def test_it_only_reads_for_this_machine(address: str, path: str, method: str, host: str, status: int) -> None:
    response, text = ask(address, path, method, Host=host)
    assert response.status == status and (status == 200 or "reward" not in text)
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for arguments, message in (
            ([tmp_path, "--serve"], "has neither config.json nor metrics.jsonl"),
            ([run, tmp_path / "x", "--serve", "--port", 0], "has neither config.json nor metrics.jsonl"),
            ([run, "--serve", "--port", port], f"port {port} of 127.0.0.1 is not free"),
            ([run, "--serve", "--port=65536"], "port 65536 of 127.0.0.1 is not free"),
        ):
            assert main(["plot", *map(str, arguments)]) == 2
            said = capsys.readouterr().err
            assert message in said and said.count("\n") == 1, said


def restore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(tmp_path: Path, ended_by: signal.Signals) -> None:
    run = write_run(tmp_path / "run", 2)
    before = sorted(path.name for path in run.iterdir())
    command = [sys.executable, "-m", "megatron_sspo", "plot", str(run), "--serve", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a test in the background may have been started with SIGINT ignored, which a program inherits
    with subprocess.Popen(command, **pipes, preexec_fn=restore_interrupts) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            address = process.stdout.readline().split()[0]
            assert len(ask(address, "/metrics?run=0")[1].splitlines()) == 2
            port = int(address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET * HTTP/1.1\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.0 400 Bad Request")
            listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
            assert f"0100007F:{port:04X} 00000000:0000 0A" in listening, "it listens on 127.0.0.1"
            assert f"00000000:{port:04X} 00000000:0000 0A" not in listening, "and on no other address"
        finally:
            process.send_signal(ended_by)
        assert process.wait(60) == (130 if ended_by == signal.SIGINT else -signal.SIGTERM)
        assert process.stderr.read() == ""
    assert sorted(os.listdir(run)) == before
