"""Serves this machine's sandbox over HTTP, to trainers that have none of their own.

    MEGATRON_SSPO_SANDBOX_KEY=... python -m megatron_sspo.sandbox.serve --port 8765

Anyone who has the key can execute code in the sandbox, and only there. The server does not start without a key, or if
its sandbox fails the probe.
"""

import argparse
import dataclasses
import hmac
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.processes.cores import num_cores
from megatron_sspo.processes.keys import check_key
from megatron_sspo.sandbox.probe import open_sandbox
from megatron_sspo.sandbox.remote import KEY, MIN_KEY_LENGTH, end_connection
from megatron_sspo.sandbox.types import Case, Limits, Runner, SandboxBroken, Session

_LONGEST_BODY = 64 * 1024**2
_SOCKET_SECONDS = 60.0  # for a client to send its whole request, or to read the answer
_MOST_AWAITED = 1024  # connections without a request; each has a thread
_IDLE_SECONDS = 600.0  # a session that is unused for longer is ended if another one needs its place,
_ABANDONED_SECONDS = 4 * 3600.0  # and after this time in any case: a turn of the policy, or an update, may take long
MAX_SESSIONS = 256
_SESSION_PATH = re.compile(r"/sessions/([0-9a-f]{32})")


class BadRequest(Exception):
    """Raised if a client sent an invalid request."""


class SandboxServer(ThreadingHTTPServer):
    """An HTTP server for one sandbox, with a bounded number of programs at a time.

    Args:
        address: host and port; port 0 takes a free one.
        runner: the sandbox that executes the programs.
        key: the secret that each request has to carry.
        concurrency: the number of programs at a time.
        max_sessions: the largest number of open sessions.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], runner: Runner, key: str, concurrency: int, max_sessions: int = MAX_SESSIONS
    ) -> None:
        self.runner = runner
        self.key = key
        self.slots = threading.Semaphore(concurrency)
        self.sessions = _Sessions(max_sessions)
        self.awaited = _Awaited()
        super().__init__(address, _Handler)

    def service_actions(self) -> None:
        """Ends abandoned sessions and slow connections; the server loop calls it twice a second."""
        self.sessions.end_abandoned()
        self.awaited.end_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints an error of the server; a client that has gone is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        self.sessions.end_all()
        self.runner.close()


class _Awaited:
    """The connections whose next request has not arrived, each with the time at which it is late.

    The socket's own limit is for one read, so a client that sends a byte a minute would keep its thread for ever.
    Anyone can connect without the key, so of too many connections the one that has waited longest is ended; a client
    that still needs it connects again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late_at: dict[socket.socket, float] = {}

    def add(self, connection: socket.socket) -> None:
        with self._lock:
            self._late_at[connection] = time.monotonic() + _SOCKET_SECONDS
            if len(self._late_at) > _MOST_AWAITED:
                longest = next(iter(self._late_at))
                del self._late_at[longest]
                end_connection(longest)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._late_at.pop(connection, None)

    def end_late(self) -> None:
        with self._lock:
            for connection, late_at in self._late_at.items():
                if late_at < time.monotonic():
                    end_connection(connection)


class _Sessions:
    """The open sessions by their names, each with the answer to its last cell."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._lock = threading.Lock()
        self._sessions: dict[str, _OpenSession] = {}

    def open(self, name: str, runner: Runner) -> None:
        with self._lock:
            if name in self._sessions:  # the request was sent again because its answer was lost
                return
            idle = self._idle(_IDLE_SECONDS)
            if len(self._sessions) >= self._max_sessions and idle:
                longest = min(idle, key=lambda name: self._sessions[name].last_use)
                self._sessions.pop(longest).session.close()
            if len(self._sessions) >= self._max_sessions:
                raise BadRequest(
                    f"{self._max_sessions} sessions are open already: start the server with more --sessions, as many "
                    "as the trainer's processes times their max_episodes"
                )
            self._sessions[name] = _OpenSession(runner.session())

    def get(self, name: str) -> "_OpenSession":
        with self._lock:
            if name not in self._sessions:
                raise BadRequest("there is no such session, or it was ended because it was not used")
            self._sessions[name].last_use = time.monotonic()  # its request may wait long for a slot
            return self._sessions[name]

    def end(self, name: str) -> None:
        with self._lock:
            session = self._sessions.pop(name, None)
        if session is not None:
            session.session.close()

    def end_abandoned(self) -> None:
        """Ends the sessions whose trainer must be gone."""
        with self._lock:
            abandoned = self._idle(_ABANDONED_SECONDS)
        for name in abandoned:
            self.end(name)

    def _idle(self, seconds: float) -> list[str]:
        since = time.monotonic() - seconds
        return [name for name, session in self._sessions.items() if session.is_idle(since)]

    def end_all(self) -> None:
        for name in list(self._sessions):
            self.end(name)


class _OpenSession:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.last_use = time.monotonic()
        self._lock = threading.Lock()
        self._number = 0
        self._answer: dict[str, Any] = {}

    def execute(self, number: int, code: str, seconds: float | None) -> dict[str, Any]:
        """Runs a cell; a request that is sent again gets the saved answer."""
        with self._lock:
            if number != self._number:
                self._answer = {"observation": self.session.execute(code, seconds), "is_alive": self.session.is_alive}
                self._number = number
            self.last_use = time.monotonic()
            return self._answer

    def is_idle(self, since: float) -> bool:
        """Returns whether no cell runs and the session was not used after `since`, a time of `time.monotonic`."""
        return not self._lock.locked() and self.last_use < since


class _Handler(BaseHTTPRequestHandler):
    server: SandboxServer
    protocol_version = "HTTP/1.1"
    timeout = _SOCKET_SECONDS

    def setup(self) -> None:
        super().setup()
        self.server.awaited.add(self.connection)

    def finish(self) -> None:
        self.server.awaited.remove(self.connection)  # before it is closed: its number may then be another connection's
        super().finish()

    def do_GET(self) -> None:
        runner = self.server.runner
        about = {"limits": dataclasses.asdict(runner.limits), "has_total_memory_limit": runner.has_total_memory_limit}
        self._answer(lambda _: about if self.path == "/about" else _raise_no_such_path())

    def do_PUT(self) -> None:
        self._answer(lambda _: self.server.sessions.open(self._session_name(), self.server.runner) or {})

    def do_DELETE(self) -> None:
        self._answer(lambda _: self.server.sessions.end(self._session_name()) or {})

    def do_POST(self) -> None:
        self._answer({"/run": self._run, "/check": self._check}.get(self.path, self._execute))

    def _run(self, job: dict[str, Any]) -> dict[str, Any]:
        program, stdin, files = _string(job, "program"), _string(job, "stdin"), job.get("files")
        if not isinstance(files, dict) or not all(isinstance(content, str) for content in files.values()):
            raise BadRequest("files must be an object whose values are strings")
        with self.server.slots:
            return dataclasses.asdict(self.server.runner.run(program, stdin, files, seconds=self._seconds(job)))

    def _check(self, job: dict[str, Any]) -> dict[str, Any]:
        program, tests, pairs = _string(job, "program"), job.get("tests"), job.get("cases")
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise BadRequest("tests must be a list of strings")
        if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
            raise BadRequest("cases must be a list of objects")
        if not tests and not pairs:
            raise BadRequest("a check has neither tests nor cases")
        cases = [Case(stdin=_string(pair, "stdin"), stdout=_string(pair, "stdout")) for pair in pairs]
        with self.server.slots:
            return dataclasses.asdict(self.server.runner.check(program, tests, cases))

    def _execute(self, job: dict[str, Any]) -> dict[str, Any]:
        session = self.server.sessions.get(self._session_name())
        number, code = job.get("number"), _string(job, "code")
        if not isinstance(number, int):
            raise BadRequest("number must be an integer")
        with self.server.slots:
            return session.execute(number, code, self._seconds(job))

    def _seconds(self, job: dict[str, Any]) -> float | None:
        """Returns the deadline of a request, at most the server's own; None if it names none."""
        seconds = job.get("seconds")
        if seconds is None:
            return None
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise BadRequest("seconds must be a number above 0")
        return float(min(seconds, self.server.runner.limits.wall_seconds))  # JSON's integers may exceed a float

    def _session_name(self) -> str:
        found = _SESSION_PATH.fullmatch(self.path)
        return found[1] if found else _raise_no_such_path()

    def _answer(self, work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.key}".encode()):
            self.close_connection = True  # its body is not read
            return self._send(401, {"error": "the key is wrong or missing"})
        try:
            return self._send(200, work(self._body()))
        except BadRequest as error:
            self.close_connection = True
            return self._send(400, {"error": str(error)})
        except SandboxBroken as error:
            return self._send(503, {"error": str(error)})

    def _body(self) -> dict[str, Any]:
        size = self.headers.get("Content-Length", "0")
        if not re.fullmatch("[0-9]{1,12}", size) or int(size) > _LONGEST_BODY:
            raise BadRequest(f"a request needs a Content-Length of at most {_LONGEST_BODY} bytes")
        try:
            body = self.rfile.read(int(size))
            self.server.awaited.remove(self.connection)
            found = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise BadRequest("the request is not JSON") from error
        if not isinstance(found, dict):
            raise BadRequest("the request is not a JSON object")
        return found

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.awaited.add(self.connection)  # for the next request

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a line for each of thousands of checks would be useless."""


def _string(job: dict[str, Any], name: str) -> str:
    value = job.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string")
    return value


def _raise_no_such_path() -> Any:
    raise BadRequest("there is no such path")


def _listen(options: argparse.Namespace, runner: Runner, key: str) -> SandboxServer:
    try:
        return SandboxServer((options.host, options.port), runner, key, options.concurrency, options.sessions)
    except (OSError, UnicodeError) as error:  # a name that IDNA cannot encode
        reason = getattr(error, "strerror", None) or error
        place = f"{options.host}, port {options.port}"
        raise UserError(f"the server cannot listen at {place} ({reason}): choose another --host or --port") from error


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; default: %(default)s")
    parser.add_argument("--port", type=int, default=8765, help="default: %(default)s; 0 takes a free one")
    parser.add_argument("--concurrency", type=int, default=num_cores(), help="programs at a time; default: cores")
    parser.add_argument(
        "--sessions",
        type=int,
        default=MAX_SESSIONS,
        help="interpreters that may be open at a time; default: %(default)s",
    )
    parser.add_argument("--python", default="", help="the interpreter to copy; default: this one")
    parser.add_argument("--package", action="append", default=[], help="a distribution that programs may import")
    parser.add_argument("--cgroup", default="", help="a delegated control group")
    for field in dataclasses.fields(Limits):
        kind = float if field.name == "wall_seconds" else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    options = parser.parse_args()
    try:
        key = os.environ.pop(KEY, "")
        if len(key) < MIN_KEY_LENGTH:
            raise UserError(f"{KEY} has {len(key)} characters: set it to a random key of {MIN_KEY_LENGTH} or more")
        check_key(key, "the sandbox's", KEY)
        for name in ("concurrency", "sessions"):
            if getattr(options, name) < 1:
                raise UserError(f"--{name} is {getattr(options, name)}: it must be 1 or more")
        if not 0 <= options.port <= 65535:
            raise UserError(f"--port is {options.port}: it must be between 0 and 65535")
        limits = {field.name: getattr(options, field.name) for field in dataclasses.fields(Limits)}
        runner = open_sandbox(limits, python=options.python, packages=options.package, cgroup=options.cgroup)
        with _listen(options, runner, key) as server:
            print(f"sandbox at http://{options.host}:{server.server_address[1]}", flush=True)
            server.serve_forever()
    except UserError as error:
        print(f"megatron_sspo.sandbox.serve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
