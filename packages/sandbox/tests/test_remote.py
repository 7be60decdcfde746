"""Tests of a sandbox over HTTP: the server in its own process, and requests that fail."""

import contextlib
import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest.mock import Mock

import pytest

from packages.sandbox.tests.conftest import LIMITS
from sspo_sandbox import Case, Sandbox, SandboxBroken, SandboxError, open_sandbox
from sspo_sandbox.remote import KEY, RemoteSandbox
from sspo_sandbox.serve import SandboxServer

pytestmark = pytest.mark.slow

THE_KEY = "a key of the tests' own"


def start_server(*arguments: str, key: str = THE_KEY) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sspo_sandbox.serve", "--port", "0", *arguments]
    return subprocess.Popen(
        command, env={**os.environ, KEY: key}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def url(sandbox: Sandbox) -> Iterator[str]:
    with start_server("--wall-seconds", "30", "--processes", "20", "--memory-bytes", str(192 << 20)) as server:
        assert server.stdout and server.stderr
        line = server.stdout.readline()
        assert line.startswith("sandbox at http://127.0.0.1:"), line + server.stderr.read()
        yield line.split()[-1]
        server.terminate()


def test_a_remote_sandbox_works_like_a_local_one(url: str, monkeypatch) -> None:
    monkeypatch.setenv(KEY, THE_KEY)
    remote = open_sandbox(url=url)  # it passes the probe
    assert isinstance(remote, RemoteSandbox)
    assert (remote.limits.wall_seconds, remote.limits.processes) == (30.0, 20)
    result = remote.run("print(input(), 'end')", "é\ud800")
    assert result.end_reason == "ok" and result.stdout.endswith("end\n")
    assert remote.run("while True: pass", seconds=0.2).end_reason == "time"
    assert remote.check("def f(x): return x", ["assert f(1) == 1"]).passed
    assert remote.check("def f(x): return x", ["assert f(1) == 2"]).reason == "failed"
    assert remote.check("print(input())", [], [Case(stdin="a", stdout="a")]).passed
    session = remote.session()
    assert session.execute("x = 41") == "" and session.execute("x + 1") == "42\n" and session.is_alive
    assert "the session is over" in session.execute("import os; os._exit(1)") and not session.is_alive
    session.close()
    with pytest.raises(SandboxBroken, match="no such session"):
        session.execute("1")


@pytest.mark.parametrize("key", ["", "wrong", THE_KEY + "x", THE_KEY + "ключ", "a key with a line's end\n"])
def test_requests_without_the_key_are_refused(url: str, key: str, monkeypatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(SandboxError, match="key"):
        RemoteSandbox(url, key)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    for method, path in (("GET", "/about"), ("POST", "/run"), ("PUT", "/sessions/" + "0" * 32), ("POST", "/nothing")):
        connection.request(method, path, b'{"program": "print(1)", "stdin": ""}')
        answer = connection.getresponse()
        assert answer.status == 401 and b"print" not in answer.read()
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/run", b"{"),
        ("POST", "/run", b"[" * 100_000),
        ("POST", "/run", b'{"program": "1"}'),
        ("POST", "/run", b'{"program": "1", "stdin": "", "seconds": "1"}'),
        ("POST", "/check", b'{"program": "1", "tests": [], "cases": [{"stdin": 1}]}'),
        ("POST", "/check", b'{"program": "1", "tests": [], "cases": []}'),
        ("POST", "/nothing", b"{}"),
        ("GET", "/etc/passwd", b""),
        ("POST", "/sessions/" + "0" * 32, b'{"code": "1", "number": 1, "seconds": null}'),
    ],
)
def test_a_malformed_request_is_refused(url: str, method: str, path: str, body: bytes) -> None:
    remote = RemoteSandbox(url, THE_KEY)
    status, answer = remote._exchange(method, path, body)
    assert status == 400 and b"error" in answer
    assert remote.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        ((), "", "the server needs a key: set MEGATRON_SSPO_SANDBOX_KEY to 16 or more random letters"),
        ((), "short", "the server needs a key"),
        (("--port", "70000"), THE_KEY, "cannot listen at 127.0.0.1, port 70000"),
        (("--host", "192.0.2.1"), THE_KEY, "cannot listen at 192.0.2.1, port 0 ("),
        (("--host", "a" * 64), THE_KEY, "cannot listen at aaa"),
        (("--concurrency", "0"), THE_KEY, "argument --concurrency: it must be 1 or more"),
        (("--processes", "-1"), THE_KEY, "processes is -1"),
    ],
)
@pytest.mark.bubblewrap
def test_a_server_with_an_invalid_setting_does_not_start(arguments: tuple[str, ...], key: str, message: str) -> None:
    with start_server(*arguments, key=key) as server:
        try:
            _, stderr = server.communicate(timeout=60)
        finally:
            server.kill()  # one that has started would serve without an end
    assert server.returncode == 2 and message in stderr and "Traceback" not in stderr


@contextlib.contextmanager
def served(server: HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_session_keeps_its_place_until_it_is_closed_or_unused_when_another_needs_it() -> None:
    """The run ends if its session is gone, and a turn of the policy or an update takes as long as it takes."""
    server = SandboxServer(("127.0.0.1", 0), Mock(), THE_KEY, 2, max_sessions=2)
    for name in "ab":
        server.open_session(name)
    server.session("a").last_use = time.monotonic() - 3600.0
    server.open_session("c")
    with pytest.raises(Exception, match="2 sessions are open already: start the server with more --sessions"):
        server.open_session("d")
    with pytest.raises(Exception, match="no such session"):
        server.session("a")
    server.end_session("b")
    server.open_session("d")
    server.server_close()


class Flaky(BaseHTTPRequestHandler):
    """Does what a real server does, but loses the answer of every other request."""

    requests = 0
    content: bytes = b""

    def do_GET(self) -> None:
        size = self.headers.get("Content-Length", "0")
        self.rfile.read(int(size))
        Flaky.requests += 1
        if Flaky.requests % 2:
            self.connection.close()
            return
        about = b'{"limits": {}, "has_total_memory_limit": true}'
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + (about if self.path == "/about" else self.content))
        self.close_connection = True

    do_POST = do_GET

    def log_message(self, format, *args) -> None:
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"reason": "passed", "passed": true}', ""),
        ("<html>", "JSONDecodeError"),
        ('{"reason": "passed", "success": true}', "another version of sspo_sandbox"),
    ],
)
def test_a_failed_request_is_sent_again_and_an_answer_that_is_no_verdict_is_none(
    monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.setattr(Flaky, "content", content.encode())
    monkeypatch.setattr("time.sleep", lambda _: None)
    server = HTTPServer(("127.0.0.1", 0), Flaky)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    with served(server) as url:
        remote = RemoteSandbox(url, THE_KEY)
        with pytest.raises(SandboxBroken, match=message) if message else contextlib.nullcontext():
            assert remote.check("", ["pass"]).passed


def test_a_cell_is_never_executed_twice_and_a_lost_server_is_an_error() -> None:
    with served(SandboxServer(("127.0.0.1", 0), Sandbox(LIMITS), THE_KEY, 2)) as url:
        remote = RemoteSandbox(url, THE_KEY, request_seconds=5.0)
        session = remote.session()
        assert session.execute("x = 0") == ""
        job = {"code": "x += 1; x", "number": 2, "seconds": None}
        first, again = (remote.request("POST", session._path, job) for _ in range(2))  # pyright: ignore
        assert first == again == {"observation": "1\n", "is_alive": True}
    with pytest.raises(SandboxBroken, match="Connection refused"):
        remote.check("def f(): return 1", ["assert f() == 1"])
    with pytest.raises(SandboxError, match=f"no sandbox can be used at {url}"):
        RemoteSandbox(url, THE_KEY)
