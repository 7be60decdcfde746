"""Tests of a sandbox over HTTP: the server in its own process, and requests that fail."""

import contextlib
import dataclasses
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any
from unittest.mock import Mock

import pytest

from megatron_sspo.environment.codeact import environment
from megatron_sspo.errors import UserError
from megatron_sspo.sandbox import remote as remote_module
from megatron_sspo.sandbox import serve
from megatron_sspo.sandbox.probe import open_sandbox, probe
from megatron_sspo.sandbox.remote import KEY, RemoteSandbox
from megatron_sspo.sandbox.sandbox import Sandbox
from megatron_sspo.sandbox.serve import SandboxServer, _Sessions
from megatron_sspo.sandbox.types import Case, SandboxBroken
from megatron_sspo.types import Prompt
from tests.sandbox.conftest import LIMITS

pytestmark = pytest.mark.slow

THE_KEY = "a key of the tests' own"
A_POST = f"POST /run HTTP/1.1\r\nAuthorization: Bearer {THE_KEY}\r\n"


def start_server(*arguments: str, key: str = THE_KEY) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "megatron_sspo.sandbox.serve", "--port", "0", *arguments]
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


@pytest.fixture(scope="module")
def remote(url: str) -> RemoteSandbox:
    return RemoteSandbox(url, THE_KEY)


def test_a_remote_sandbox_works_like_a_local_one(remote: RemoteSandbox) -> None:
    assert (remote.limits.wall_seconds, remote.limits.processes) == (30.0, 20)
    result = remote.run("print(input(), open('a').read())", "é\ud800", {"a": "file"})
    assert result.end_reason == "ok" and result.stdout.endswith("file\n")
    assert remote.run("while True: pass", seconds=0.2).end_reason == "time"
    assert remote.check("def f(x): return x", ["assert f(1) == 1"]).passed
    assert remote.check("def f(x): return x", ["assert f(1) == 2"]).reason == "failed"
    assert remote.check("print(input())", [], [Case(stdin="a", stdout="a")]).passed
    session = remote.session()
    assert session.execute("x = 41") == "" and session.execute("x + 1") == "42\n" and session.is_alive
    assert "the session is over" in session.execute("import os; os._exit(1)") and not session.is_alive
    session.close()
    session = remote.session()
    session.close()
    with pytest.raises(SandboxBroken, match="no such session"):
        session.execute("1")


def test_a_remote_sandbox_passes_the_probe(remote: RemoteSandbox, url: str, monkeypatch) -> None:
    probe(remote)
    monkeypatch.setenv(KEY, THE_KEY)
    opened = open_sandbox(url=url)
    assert isinstance(opened, RemoteSandbox)


def test_episodes_run_in_a_remote_sandbox(url: str, monkeypatch) -> None:
    monkeypatch.setenv(KEY, THE_KEY)
    task = Prompt(id="a", tokens=(1,), answer="")
    with contextlib.closing(environment(url=url)) as acting, contextlib.closing(acting.open(task)) as episode:
        assert episode.observe("<execute> x = 41 </execute>") == "Observation:\n[nothing was printed]"
        assert episode.observe("<execute> x + 1 </execute>") == "Observation:\n42"


@pytest.mark.parametrize("key", ["", "wrong", THE_KEY + "x", "ключ"])
def test_requests_without_the_key_are_refused(url: str, key: str, monkeypatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(UserError, match="key"):
        RemoteSandbox(url, key)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    for method, path in (("GET", "/about"), ("POST", "/run"), ("PUT", "/sessions/" + "0" * 32), ("POST", "/nothing")):
        connection.request(method, path, b'{"program": "print(1)", "stdin": "", "files": {}}')
        answer = connection.getresponse()
        assert answer.status == 401 and b"print" not in answer.read()
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/run", b"{"),
        ("POST", "/run", b"[]"),
        ("POST", "/run", b"[" * 100_000),
        ("POST", "/run", b"{}"),
        ("POST", "/run", b'{"program": "1", "stdin": "", "files": {"a": 1}}'),
        ("POST", "/run", b'{"program": "1", "stdin": "", "files": {}, "seconds": -1}'),
        ("POST", "/run", b'{"program": "1", "stdin": "", "files": {}, "seconds": NaN}'),
        ("POST", "/check", b'{"program": "1", "tests": "x", "cases": []}'),
        ("POST", "/check", b'{"program": "1", "tests": [], "cases": [{"stdin": 1}]}'),
        ("POST", "/check", b'{"program": "1", "tests": [], "cases": []}'),
        ("POST", "/nothing", b"{}"),
        ("GET", "/etc/passwd", None),
        ("PUT", "/sessions/../x", b"{}"),
        ("POST", "/sessions/" + "0" * 32, b'{"code": "1", "number": 1}'),
    ],
)
def test_a_malformed_request_is_refused(remote: RemoteSandbox, method: str, path: str, body: bytes | None) -> None:
    status, answer = remote._exchange(method, path, body)
    assert status == 400 and "error" in json.loads(answer)
    assert remote.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize("seconds", ["9" * 400, "1e999", "1e-320"])
def test_any_positive_number_of_seconds_is_at_most_the_servers_own(remote: RemoteSandbox, seconds: str) -> None:
    status, answer = remote._exchange(
        "POST", "/run", f'{{"program": "1", "stdin": "", "files": {{}}, "seconds": {seconds}}}'.encode()
    )
    assert status == 200 and json.loads(answer)["end_reason"] == ("time" if "-" in seconds else "ok")


@pytest.mark.parametrize("length", ["²", "9" * 5000, "-1", "1.5", str(1 << 40)])
def test_a_malformed_length_is_refused(url: str, length: str) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("POST", "/run", None, {"Authorization": f"Bearer {THE_KEY}", "Content-Length": length})
    answer = connection.getresponse()
    assert answer.status == 400 and b"Content-Length" in answer.read()
    connection.close()


def test_a_cell_whose_answer_was_lost_is_not_executed_again(remote: RemoteSandbox) -> None:
    session = remote.session()
    session.execute("x = 0")
    job = {"code": "x += 1; x", "number": 2, "seconds": None}
    first, again = (remote.request("POST", session._path, job) for _ in range(2))  # pyright: ignore
    assert first == again == {"observation": "1\n", "is_alive": True}
    session.close()


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        ((), "", "has 0 characters: set it to a random key"),
        ((), "short", "has 5 characters"),
        ((), THE_KEY + "ключ", "characters that an HTTP header cannot hold"),
        (("--port", "70000"), THE_KEY, "--port is 70000"),
        (("--port", "-1"), THE_KEY, "--port is -1"),
        (("--host", "192.0.2.1"), THE_KEY, "cannot listen at 192.0.2.1, port 0 (Cannot assign requested address)"),
        (("--host", "a" * 64), THE_KEY, "cannot listen at aaa"),
        (("--concurrency", "0"), THE_KEY, "--concurrency is 0"),
        (("--sessions", "0"), THE_KEY, "--sessions is 0"),
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
    assert server.returncode == 2 and message in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:80", "it must be like http://"),
        ("ftp://host/", "it must be like http://"),
        ("http://127.0.0.1:port", "it must be like http://"),
        ("http://127.0.0.1:70000", "it must be like http://"),
        ("http://127.0.0.1:1", "no sandbox can be used at http://127.0.0.1:1"),
    ],
)
def test_an_unusable_url_is_named(url: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        RemoteSandbox(url, THE_KEY, request_seconds=5.0)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["ключ", "a key\n"])
def test_a_key_that_an_http_header_cannot_hold_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="characters that an HTTP header cannot hold"):
        RemoteSandbox("http://127.0.0.1:1", key)


class Unreliable(BaseHTTPRequestHandler):
    """Closes every other request without an answer, and answers the rest as a real server would."""

    protocol_version = "HTTP/1.0"
    requests = 0
    answers = ({"limits": {}, "has_total_memory_limit": True}, {"reason": "passed", "passed": True})

    def do_GET(self) -> None:
        Unreliable.requests += 1
        if Unreliable.requests % 2:
            self.connection.close()
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps(self.answers[self.command == "POST"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format, *args) -> None:
        pass


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


@pytest.mark.parametrize("start", ["", "GET /about HTTP/1.1\r\n", f"{A_POST}Content-Length: 99999\r\n\r\n"])
def test_a_client_that_never_ends_its_request_is_disconnected(start: str, monkeypatch) -> None:
    monkeypatch.setattr(serve, "_SOCKET_SECONDS", 0.5)
    with served(SandboxServer(("127.0.0.1", 0), Mock(), THE_KEY, 2)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(start.encode())
            with pytest.raises(OSError):
                while True:
                    client.sendall(b"x")
                    time.sleep(0.05)


def test_of_too_many_connections_the_one_that_has_waited_longest_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(serve, "_MOST_AWAITED", 4)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(SandboxServer(("127.0.0.1", 0), Sandbox(LIMITS), THE_KEY, 2)))
        address = url.removeprefix("http://").split(":")
        idle = []
        for _ in range(8):
            idle.append(stack.enter_context(socket.create_connection((address[0], int(address[1])))))
            time.sleep(0.1)  # each has a thread, which begins to wait before that of the next
        assert RemoteSandbox(url, THE_KEY).run("print(1)", "", {}).stdout == "1\n"
        for client in idle[:4]:
            client.settimeout(20)
            assert client.recv(1) == b""
        idle[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            idle[-1].recv(1)


def test_closing_an_ended_session_frees_its_place() -> None:
    with served(SandboxServer(("127.0.0.1", 0), Sandbox(LIMITS), THE_KEY, 2, max_sessions=1)) as url:
        remote = RemoteSandbox(url, THE_KEY)
        first = remote.session()
        first.execute("import os; os._exit(1)")
        with pytest.raises(SandboxBroken, match="1 sessions are open already: start the server with more --sessions"):
            remote.session()
        first.close()
        second = remote.session()
        first.close()
        assert second.execute("1") == "1\n"
        second.close()


def test_a_session_between_two_long_turns_is_kept_until_another_needs_its_place() -> None:
    """The run ends if its session is gone, and a turn of the policy or an update takes as long as it takes."""
    sessions = _Sessions(2)
    for name in "ab":
        sessions.open(name, Mock())
    for name, seconds in (("a", 3600.0), ("b", 601.0)):
        sessions.get(name).last_use = time.monotonic() - seconds
    sessions.end_abandoned()
    assert list(sessions._sessions) == ["a", "b"]
    sessions.open("c", Mock())
    assert list(sessions._sessions) == ["b", "c"]
    sessions.get("b").last_use = time.monotonic() - 5 * 3600.0
    sessions.end_abandoned()
    assert list(sessions._sessions) == ["c"]


def test_a_session_whose_request_waits_for_a_slot_is_not_idle() -> None:
    sessions = _Sessions(1)
    sessions.open("a", Mock())
    session = sessions.get("a")
    session.last_use = 0.0
    assert session.is_idle(1.0)
    assert not sessions.get("a").is_idle(1.0)


def test_a_failed_request_is_sent_again() -> None:
    server = HTTPServer(("127.0.0.1", 0), Unreliable)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    with served(server) as url:
        remote = RemoteSandbox(url, THE_KEY)
        assert [remote.check("", ["pass"]).passed for _ in range(2)] == [True, True]


def test_a_lost_server_is_an_error_and_not_a_verdict() -> None:
    with served(SandboxServer(("127.0.0.1", 0), Sandbox(LIMITS), THE_KEY, 2)) as url:
        remote = RemoteSandbox(url, THE_KEY, request_seconds=5.0)
        session = remote.session()
        assert session.execute("1") == "1\n"
    with pytest.raises(SandboxBroken, match="Connection refused"):
        remote.check("def f(): return 1", ["assert f() == 1"])


def _answering(answer: Callable[[bytes], bytes], *, then: bytes = b"") -> type[BaseHTTPRequestHandler]:
    """Returns a handler that sends raw bytes, and afterwards one byte of `then` every tenth of a second."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            with contextlib.suppress(OSError):
                self.wfile.write(answer(self.path.encode()))
                for _ in range(200 if self.path != "/about" and then else 0):
                    self.wfile.write(then)
                    self.wfile.flush()
                    time.sleep(0.1)
            self.close_connection = True

        do_POST = do_PUT = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _content(path: bytes, of_check: str) -> bytes:
    about = json.dumps({"limits": dataclasses.asdict(LIMITS), "has_total_memory_limit": False})
    body = (about if path == b"/about" else of_check).encode()
    return b"HTTP/1.0 200 OK\r\n\r\n" + body


@pytest.mark.parametrize(
    ("of_check", "message"),
    [
        ("[" * 100_000, "something other than a JSON object"),
        ('{"passed": "no", "reason": "failed"}', "another version of megatron_sspo: its passed is 'no'"),
        ('{"passed": true, "reason": "fine"}', "its reason is 'fine'"),
        ('{"passed": true, "reason": ["passed"]}', "its reason is"),
        ('{"passed": true, "reason": "passed", "detail": null}', "its detail is None"),
        ('{"passed": true, "reason": "passed", "seconds": "1"}', "its seconds is '1'"),
    ],
)
def test_an_answer_that_is_no_verdict(of_check: str, message: str) -> None:
    """A wrong type would count as a verdict: "no" is true."""
    handler = _answering(lambda path: _content(path, of_check))
    with served(HTTPServer(("127.0.0.1", 0), handler)) as url, pytest.raises(SandboxBroken, match=message):
        RemoteSandbox(url, THE_KEY).check("", ["pass"])


@pytest.mark.parametrize("then", [b" ", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_server_that_answers_without_end(then: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read returns in time, but the answer never ends."""
    monkeypatch.setattr(remote_module, "_ATTEMPTS", 1)

    def start(path: bytes) -> bytes:
        return _content(path, "") if then == b" " or path == b"/about" else b""

    server = ThreadingHTTPServer(("127.0.0.1", 0), _answering(start, then=then))
    server.daemon_threads = True
    with served(server) as url:
        remote = RemoteSandbox(url, THE_KEY, request_seconds=1.0)
        began = time.monotonic()
        with pytest.raises(SandboxBroken):
            remote.check("", ["pass"])
        assert time.monotonic() - began < 10
