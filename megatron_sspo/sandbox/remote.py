"""A sandbox on another machine, over HTTP. The server is `serve.py`."""

import contextlib
import http.client
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.processes.keys import check_key
from megatron_sspo.sandbox.types import Case, Limits, SandboxBroken, SandboxResult, Session, Verdict

KEY = "MEGATRON_SSPO_SANDBOX_KEY"
MIN_KEY_LENGTH = 16  # characters

_ATTEMPTS = 4
_LONGEST_ANSWER = 1 << 30  # bytes
_FINAL_STATUSES = (400, 401, 403, 404, 413)  # the server has rejected the request, so a retry would fail too


class RemoteSandbox:
    """The sandbox of a server. Its programs keep no state, so a request that fails in transit is sent again.

    Args:
        url: the server's address, such as http://127.0.0.1:8765; use https if the network is not trusted.
        key: the server's key; "" takes it from the environment variable MEGATRON_SSPO_SANDBOX_KEY.
        request_seconds: timeout of one request, including its wait in the server's queue.

    Raises:
        UserError: the url or the key is invalid, or the server does not answer as a sandbox.
    """

    def __init__(self, url: str, key: str = "", *, request_seconds: float = 300.0) -> None:
        self.url = url.rstrip("/")
        check_url(url)
        self._key = key or os.environ.get(KEY, "")
        if not self._key:
            raise UserError(f"the sandbox at {url} needs a key: set {KEY} to the key that the server was started with")
        check_key(self._key, "the sandbox's", KEY)
        self._request_seconds = request_seconds
        try:
            about = self.request("GET", "/about", None)
            self.limits = Limits(**about["limits"])
            self.has_total_memory_limit = bool(about["has_total_memory_limit"])
        except (SandboxBroken, KeyError, TypeError) as error:
            raise UserError(
                f"no sandbox can be used at {url}: {error}; check that the server runs and that {KEY} is its key"
            ) from error

    def run(
        self, program: str, stdin: str = "", files: Mapping[str, str] | None = None, *, seconds: float | None = None
    ) -> SandboxResult:
        """Runs a program; see `Sandbox.run`. Raises SandboxBroken if the server can no longer be reached."""
        job = {"program": program, "stdin": stdin, "files": dict(files or {}), "seconds": seconds}
        return _build(SandboxResult, self.request("POST", "/run", job))

    def check(self, program: str, tests: Sequence[str] = (), cases: Sequence[Case] = ()) -> Verdict:
        """Checks a program; see `Sandbox.check`. Raises SandboxBroken if the server can no longer be reached."""
        pairs = [{"stdin": case.stdin, "stdout": case.stdout} for case in cases]
        job = {"program": program, "tests": list(tests), "cases": pairs}
        return _build(Verdict, self.request("POST", "/check", job))

    def session(self) -> Session:
        """Starts a session; see `Sandbox.session`.

        The server ends a session that is unused for four hours, or for ten minutes if another one needs its place.
        """
        return RemoteSession(self)

    def close(self) -> None:
        """Does nothing, since no connection stays open between requests."""

    def request(self, method: str, path: str, content: Any) -> dict[str, Any]:
        """Returns the JSON object of the server's answer.

        Raises:
            SandboxBroken: the server refuses the request, or several attempts fail.
        """
        body = None if content is None else json.dumps(content).encode()
        for attempt in range(_ATTEMPTS):
            try:
                status, text = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__} {error}"
            else:
                if status == 200:
                    return _parse_object(text, self.url + path)
                problem = f"it answered {status}: {text[:500].decode(errors='replace')}"
                if status in _FINAL_STATUSES:
                    break
            if attempt + 1 < _ATTEMPTS:
                time.sleep(0.2 * 4**attempt)
        raise SandboxBroken(f"the sandbox at {self.url}{path}: {problem}")

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._request_seconds)
        began, late = time.monotonic(), None
        try:
            connection.connect()
            # the socket's own limit is for one read, so a server that sends a byte now and then would keep this waiting
            late = threading.Timer(self._request_seconds, end_connection, (connection.sock,))
            late.daemon = True
            late.start()
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request(method, parts.path + path, body, headers)
            response = connection.getresponse()
            text = response.read(_LONGEST_ANSWER + 1)
            if len(text) > _LONGEST_ANSWER:
                raise http.client.HTTPException(f"the answer has more than {_LONGEST_ANSWER:,} bytes")
            if time.monotonic() - began >= self._request_seconds:
                raise TimeoutError(f"the answer was not complete within {self._request_seconds:g} s")
            return response.status, text
        finally:
            if late is not None:
                late.cancel()
            connection.close()


def end_connection(connection: socket.socket) -> None:
    """Ends a connection that another thread reads from: the read returns."""
    with contextlib.suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


def check_url(url: str) -> None:
    """Raises UserError if a url is not that of a server."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # the port is not a number between 0 and 65535
        is_valid = False
    if not is_valid:
        raise UserError(f"the sandbox's url is {url!r}: it must be like http://127.0.0.1:8765")


class RemoteSession:
    """A session on a server. A request whose answer was lost is sent again, but its cell is not executed again."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self._sandbox = sandbox
        self._path = f"/sessions/{uuid.uuid4().hex}"
        self._number = 0
        self._alive, self._closed = True, False
        sandbox.request("PUT", self._path, {})

    @property
    def is_alive(self) -> bool:
        """Returns whether the next cell will be executed, as known from the last answer."""
        return self._alive

    def execute(self, code: str, seconds: float | None = None) -> str:
        """Runs a cell; see `LocalSession.execute`."""
        self._number += 1
        job = {"code": code, "number": self._number, "seconds": seconds}
        found = self._sandbox.request("POST", self._path, job)
        self._alive = found.get("is_alive") is True
        return str(found.get("observation"))

    def close(self) -> None:
        """Ends the session on the server, even if its interpreter has already ended. A second call does nothing."""
        if not self._closed:
            self._alive, self._closed = False, True
            self._sandbox.request("DELETE", self._path, None)


def _parse_object(text: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SandboxBroken(f"the sandbox at {place} answered with something other than a JSON object: {text[:200]!r}")
    return found


def _build(kind: type, found: dict[str, Any]) -> Any:
    """Returns a result of the server. A value of another type would be a wrong verdict, so it is none."""
    try:
        built = kind(**found)
        for name, value in get_type_hints(kind).items():
            _check_value(name, getattr(built, name), value)
    except TypeError as error:
        raise SandboxBroken(f"the sandbox's server runs another version of megatron_sspo: {error}") from error
    return built


def _check_value(name: str, value: Any, expected: Any) -> None:
    if get_origin(expected) is Literal:
        is_right = value in get_args(expected)
    elif expected is float:
        is_right = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        is_right = type(value) in (get_args(expected) or (expected,))
    if not is_right:
        raise TypeError(f"its {name} is {short_repr(value)}")
