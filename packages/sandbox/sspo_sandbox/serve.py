"""Serves this machine's sandbox over HTTP, to trainers that have none of their own.

    MEGATRON_SSPO_SANDBOX_KEY=... python -m sspo_sandbox.serve --port 8765

Anyone who has the key can execute code in the sandbox, and only there. The server does not start without a key, or if
its sandbox fails the probe.
"""

import argparse
import hmac
import json
import os
import sys
import threading
import time
from dataclasses import asdict, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sspo_sandbox.probe import open_sandbox
from sspo_sandbox.remote import KEY, Runner, Session, check_key
from sspo_sandbox.types import Case, Limits, SandboxBroken, SandboxError

_LONGEST_BODY = 64 * 1024**2
_SOCKET_SECONDS = 60.0  # for a client to send the next part of a request, or to read one of the answer
_IDLE_SECONDS = 600.0  # a session that is unused for longer is ended if another one needs its place
_SESSIONS = "/sessions/"
MAX_SESSIONS = 256


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
        self._max_sessions = max_sessions
        self._lock = threading.Lock()
        self._sessions: dict[str, _OpenSession] = {}
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints an error of the server; a client that has gone is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for name in list(self._sessions):
            self.end_session(name)
        self.runner.close()

    def open_session(self, name: str) -> None:
        """Opens a session, in the place of one that is unused if there is no other place."""
        with self._lock:
            if name in self._sessions:  # the request was sent again because its answer was lost
                return
            if len(self._sessions) >= self._max_sessions:
                longest = min(self._sessions, key=lambda name: self._sessions[name].last_use)
                if self._sessions[longest].last_use > time.monotonic() - _IDLE_SECONDS:
                    raise ValueError(
                        f"{self._max_sessions} sessions are open already: start the server with more --sessions, as "
                        "many as the trainer's processes times their max_episodes"
                    )
                self._sessions.pop(longest).session.close()
            self._sessions[name] = _OpenSession(self.runner.session())

    def session(self, name: str) -> "_OpenSession":
        """Returns an open session."""
        with self._lock:
            if name not in self._sessions:
                raise ValueError("there is no such session, or it was ended because it was not used")
            self._sessions[name].last_use = time.monotonic()  # its request may wait long for a slot
            return self._sessions[name]

    def end_session(self, name: str) -> None:
        """Ends a session, unless it has ended."""
        with self._lock:
            session = self._sessions.pop(name, None)
        if session is not None:
            session.session.close()


class _OpenSession:
    """A session, with the answer to its last cell."""

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


class _Handler(BaseHTTPRequestHandler):
    server: SandboxServer
    protocol_version = "HTTP/1.1"
    timeout = _SOCKET_SECONDS

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.key}".encode()):
            self.close_connection = True  # its body is not read
            return self._send(401, {"error": "the key is wrong or missing"})
        try:
            return self._send(200, self._answer(self._body()))
        except SandboxBroken as error:
            return self._send(503, {"error": str(error)})
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            self.close_connection = True
            return self._send(400, {"error": f"{type(error).__name__}: {error}"})

    do_POST = do_PUT = do_DELETE = do_GET

    def _answer(self, job: dict[str, Any]) -> dict[str, Any]:
        runner, name = self.server.runner, self.path.removeprefix(_SESSIONS)
        match self.command, _SESSIONS if self.path.startswith(_SESSIONS) else self.path:
            case "GET", "/about":
                return {"limits": asdict(runner.limits), "has_total_memory_limit": runner.has_total_memory_limit}
            case "POST", "/run":
                with self.server.slots:
                    return asdict(runner.run(job["program"], job["stdin"], seconds=self._seconds(job)))
            case "POST", "/check":
                with self.server.slots:
                    return asdict(runner.check(job["program"], job["tests"], [Case(**case) for case in job["cases"]]))
            case "PUT", "/sessions/":
                self.server.open_session(name)
            case "POST", "/sessions/":
                session = self.server.session(name)
                with self.server.slots:
                    return session.execute(job["number"], job["code"], self._seconds(job))
            case "DELETE", "/sessions/":
                self.server.end_session(name)
            case _:
                raise ValueError("there is no such path")
        return {}

    def _seconds(self, job: dict[str, Any]) -> float | None:
        """Returns the deadline of a request, at most the server's own; None if it names none."""
        return None if job["seconds"] is None else min(job["seconds"], self.server.runner.limits.wall_seconds)

    def _body(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length", "0"))
        if not 0 <= size <= _LONGEST_BODY:
            raise ValueError(f"a request has at most {_LONGEST_BODY} bytes")
        return dict(json.loads(self.rfile.read(size) or b"{}") or {})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a line for each of thousands of checks would be useless."""


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("it must be 1 or more")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; default: %(default)s")
    parser.add_argument("--port", type=int, default=8765, help="default: %(default)s; 0 takes a free one")
    parser.add_argument("--concurrency", type=_count, default=cores, help="programs at a time; default: cores")
    parser.add_argument(
        "--sessions", type=_count, default=MAX_SESSIONS, help="interpreters open at a time; default: %(default)s"
    )
    parser.add_argument("--python", default="", help="the interpreter to copy; default: this one")
    parser.add_argument("--package", action="append", default=[], help="a distribution that programs may import")
    parser.add_argument("--cgroup", default="", help="a delegated control group")
    for field in fields(Limits):
        kind = float if field.name == "wall_seconds" else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    return parser


def main() -> int:
    """Runs the command line."""
    options = _parser().parse_args()
    try:
        key = check_key(os.environ.pop(KEY, ""), "the server needs a key")
        limits = {field.name: getattr(options, field.name) for field in fields(Limits)}
        runner = open_sandbox(limits, python=options.python, packages=options.package, cgroup=options.cgroup)
        try:
            server = SandboxServer((options.host, options.port), runner, key, options.concurrency, options.sessions)
        except (OSError, OverflowError, UnicodeError) as error:  # the last two: of the port, and of IDNA
            place = f"{options.host}, port {options.port}"
            raise SandboxError(f"cannot listen at {place} ({error}): choose another --host or --port") from error
        with server:
            print(f"sandbox at http://{options.host}:{server.server_address[1]}", flush=True)
            server.serve_forever()
    except SandboxError as error:
        print(f"sspo_sandbox.serve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
