"""A sandbox on another machine, over HTTP. The server is `serve.py`."""

import http.client
import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from sspo_sandbox.sandbox import Sandbox
from sspo_sandbox.session import LocalSession
from sspo_sandbox.types import Case, Limits, SandboxBroken, SandboxError, SandboxResult, Verdict

KEY = "MEGATRON_SSPO_SANDBOX_KEY"
MIN_KEY_LENGTH = 16  # characters

_ATTEMPTS = 4
_FINAL_STATUSES = (400, 401, 403, 404, 413)  # the server has rejected the request, so a retry would fail too


class RemoteSandbox:
    """The sandbox of a server. Its programs keep no state, so a request that fails in transit is sent again.

    Args:
        url: the server's address, such as http://127.0.0.1:8765; use https if the network is not trusted.
        key: the server's key; "" takes it from the environment variable MEGATRON_SSPO_SANDBOX_KEY.
        request_seconds: the longest silence of the server during a request, including the wait in its queue.

    Raises:
        SandboxError: the url or the key is invalid, or the server does not answer as a sandbox.
    """

    def __init__(self, url: str, key: str = "", *, request_seconds: float = 300.0) -> None:
        self.url = url.rstrip("/")
        check_url(url)
        self._key = check_key(key or os.environ.get(KEY, ""), f"the sandbox at {url} needs the server's key")
        self._request_seconds = request_seconds
        try:
            about = self.request("GET", "/about", None)
            self.limits = Limits(**about["limits"])
            self.has_total_memory_limit = bool(about["has_total_memory_limit"])
        except (SandboxBroken, KeyError, TypeError) as error:
            raise SandboxError(
                f"no sandbox can be used at {url}: {error}; check that the server runs and that {KEY} is its key"
            ) from error

    def run(self, program: str, stdin: str = "", *, seconds: float | None = None) -> SandboxResult:
        """Runs a program; see `Sandbox.run`. Raises SandboxBroken if the server can no longer be reached."""
        job = {"program": program, "stdin": stdin, "seconds": seconds}
        return _build(SandboxResult, self.request("POST", "/run", job))

    def check(self, program: str, tests: Sequence[str] = (), cases: Sequence[Case] = ()) -> Verdict:
        """Checks a program; see `Sandbox.check`. Raises SandboxBroken if the server can no longer be reached."""
        job = {"program": program, "tests": list(tests), "cases": list(map(asdict, cases))}
        return _build(Verdict, self.request("POST", "/check", job))

    def session(self) -> "RemoteSession":
        """Starts a session; see `Sandbox.session`. Unused for ten minutes, it makes room for another one."""
        return RemoteSession(self)

    def close(self) -> None:
        """Does nothing, since no connection stays open between requests."""

    def request(self, method: str, path: str, content: Any) -> dict[str, Any]:
        """Returns the JSON object of the answer. Raises SandboxBroken after a refusal or several failures."""
        problem = ""
        for attempt in range(_ATTEMPTS):
            time.sleep(0.2 * 4 ** (attempt - 1) if attempt else 0)
            try:
                status, text = self._exchange(method, path, json.dumps(content).encode())
                if status == 200:
                    return dict(json.loads(text))
                problem = f"it answered {status}: {text[:500].decode(errors='replace')}"
                if status in _FINAL_STATUSES:
                    break
            except (OSError, http.client.HTTPException, TypeError, ValueError) as error:  # the last two: of no JSON
                problem = f"{type(error).__name__} {error}"
        raise SandboxBroken(f"the sandbox at {self.url}{path}: {problem}")

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._request_seconds)
        try:
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request(method, parts.path + path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def check_url(url: str) -> None:
    """Raises SandboxError if a url is not that of a server."""
    try:
        is_valid = url.startswith(("http://", "https://")) and urlsplit(url).port != 0
    except ValueError:  # the port is not a number between 0 and 65535
        is_valid = False
    if not is_valid:
        raise SandboxError(f"the sandbox's url is {url!r}: it must be like http://127.0.0.1:8765")


def check_key(key: str, problem: str) -> str:
    """Returns a key that can be one of a server. Raises SandboxError if it is too short, or no header can hold it."""
    if len(key) < MIN_KEY_LENGTH or not (key.isascii() and key.isprintable()):
        raise SandboxError(f"{problem}: set {KEY} to {MIN_KEY_LENGTH} or more random letters and digits")
    return key


class RemoteSession:
    """A session on a server. A request whose answer was lost is sent again, but its cell is not executed again."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self._sandbox = sandbox
        self._path = f"/sessions/{uuid.uuid4().hex}"
        self._number = 0
        self.is_alive, self._closed = True, False
        sandbox.request("PUT", self._path, {})

    def execute(self, code: str, seconds: float | None = None) -> str:
        """Runs a cell; see `LocalSession.execute`."""
        self._number += 1
        job = {"code": code, "number": self._number, "seconds": seconds}
        found = self._sandbox.request("POST", self._path, job)
        self.is_alive = found.get("is_alive") is True
        return str(found.get("observation"))

    def close(self) -> None:
        """Ends the session on the server, even if its interpreter has already ended. A second call does nothing."""
        if not self._closed:
            self.is_alive, self._closed = False, True
            self._sandbox.request("DELETE", self._path, {})


def _build(kind: type, found: dict[str, Any]) -> Any:
    try:
        return kind(**found)
    except TypeError as error:
        raise SandboxBroken(f"the sandbox's server runs another version of sspo_sandbox: {error}") from error


Runner = Sandbox | RemoteSandbox  # runs programs, on this machine or another one
Session = LocalSession | RemoteSession  # an interpreter that keeps its state from one cell to the next
