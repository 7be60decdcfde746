"""The servers of a run: their health, the weights that they hold, and the restart of failed ones."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.servers.client import Client, ServerError
from megatron_sspo.rollout.servers.process import ServerProcess
from megatron_sspo.rollout.servers.router import Router

_log = logging.getLogger(__name__)

_START_SECONDS = 900.0  # a large model's server compiles and captures graphs for minutes
_POLL_SECONDS = 0.5
_LOG_SECONDS = 10.0  # between two log lines during a wait
_WATCH_SECONDS = 2.0  # between two health checks
_EXIT_SECONDS = 1.0  # a killed process refuses connections before its exit status can be read
_MAX_REMOVALS = 8  # of an external server in a row, without an answer to a request for a response


@dataclass(eq=False)
class Server:
    """The state of one server. If its process fails, a new process takes its place."""

    client: Client
    process: ServerProcess | None = None  # None: an external server, which the run did not start
    devices: tuple[str, ...] = ()  # GPU ids of its ranks; empty for an external server
    is_up: bool = False
    version: int | None = None  # policy version of the weights that it holds
    failure: str = ""  # reason of its last removal
    num_restarts: int = 0
    num_removals: int = 0  # of an external server, since it last answered a request for a response
    started: float = field(default_factory=time.monotonic)  # time of the start; for an external one, of its removal
    removed: asyncio.Event = field(default_factory=asyncio.Event)  # set when it is removed


class ServerPool:
    """A pool that checks servers, removes those that fail, and restarts those that the run owns.

    Methods that start a process must be called from the thread that created the pool, because the kernel kills a
    server together with the thread that started it. Methods that send requests are coroutines of the engine's loop.

    Args:
        min_servers: the run ends if fewer servers than this are up or may come up again.
        health_seconds: time limit within which a server must generate a token.
    """

    def __init__(
        self, servers: Sequence[Server], *, key: str, min_servers: int, max_restarts: int, health_seconds: float
    ) -> None:
        self.servers = list(servers)
        self.version: int | None = None  # of the weights that responses must come from; None while they are replaced
        self.router: Router | None = None  # in front of the servers; removed servers are unregistered from it
        self._background_tasks: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references to tasks
        self._key = key
        self._min_servers, self._max_restarts, self._health_seconds = min_servers, max_restarts, health_seconds

    def ready(self) -> list[Server]:
        """Returns the servers that are up and hold the current weights."""
        if self.version is None:
            return []
        return [server for server in self.servers if server.is_up and server.version == self.version]

    def up(self) -> list[Server]:
        """Returns the servers that are up, with any weights."""
        return [server for server in self.servers if server.is_up]

    def urls(self) -> set[str]:
        """Returns the URLs of the servers that a router may send requests to."""
        return {s.client.url for s in self.up() if s.version is not None and not _exit_message(s)}

    # ------------------------------------------------------------------ in the engine's loop

    async def check(self, *, generate_token: bool = True) -> None:
        """Checks every server once.

        Args:
            generate_token: whether servers that are up must generate a token, which takes about a second.
        """
        await asyncio.gather(*(self._check_server(server, generate_token=generate_token) for server in self.servers))

    async def await_any(self) -> None:
        """Waits until a server is up, or no server can come up again."""
        while not self.up():
            await asyncio.gather(*(self._check_startup(server) for server in self.servers))
            if not any(self._may_come_up(server) for server in self.servers):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def await_all(self) -> None:
        """Waits until every server is up.

        Raises:
            UserError: a server has failed.
        """
        began = logged = time.monotonic()
        while waiting := [s for s in self.servers if not s.is_up and not s.failure]:
            if time.monotonic() - logged > _LOG_SECONDS:
                logged = time.monotonic()
                where = waiting[0].client.url if waiting[0].process is None else waiting[0].process.log
                count = f"{len(waiting)} of {len(self.servers)}"
                _log.info("waiting for %s rollout servers for %.0f s (%s)", count, logged - began, where)
            await asyncio.gather(*(self._check_startup(server) for server in waiting))
            await asyncio.sleep(_POLL_SECONDS)
        if failures := [server.failure for server in self.servers if server.failure]:
            raise UserError(f"a rollout server did not start: {failures[0]}")
        up, seconds = len(self.up()), time.monotonic() - began
        _log.info("%d of %d rollout servers are ready after %.0f s", up, len(self.servers), seconds)

    async def pick(self, number: int) -> Server:
        """Returns a server that holds the weights, by its number modulo their count; waits while there is none."""
        while not (ready := self.ready()):
            await asyncio.sleep(_POLL_SECONDS)
        return ready[number % len(ready)]

    async def watch(self) -> None:
        """Checks all servers periodically until it is cancelled, except while weights are replaced."""
        while True:
            if self.version is not None:
                await self.check()
            await asyncio.sleep(_WATCH_SECONDS)

    async def check_after_failure(self, server: Server, reason: str) -> None:
        """Removes a server if it does not generate a token in time, for example after a failed request."""
        if await self._is_stuck(server):
            self.remove(server, _exit_message(server) or reason)

    def remove(self, server: Server, reason: str) -> None:
        """Removes a server: it gets no more requests, and its pending ones are sent to other servers."""
        server.is_up, server.version, server.failure = False, None, reason
        if server.process is None:
            server.started = time.monotonic()
            server.num_removals += 1
            _log.warning("the rollout server %s gets no requests until it is healthy: %s", server.client.url, reason)
        server.removed.set()
        if self.router is not None:
            self.run_in_background(self.router.remove(server.client.url))

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a coroutine without waiting for it."""
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _check_server(self, server: Server, *, generate_token: bool) -> None:
        if not server.is_up:
            await self._check_startup(server)
        elif how := _exit_message(server):
            self.remove(server, how)
        elif generate_token:
            await self.check_after_failure(server, f"the server {server.client.url} did not generate a token in time")

    async def _is_stuck(self, server: Server) -> bool:
        """Returns whether a server that is up does not generate a token in time, unless weights were replaced."""
        version, client = self.version, server.client
        if not server.is_up:
            return False
        healthy = await client.is_healthy(seconds=self._health_seconds)
        if not healthy:
            await asyncio.sleep(_EXIT_SECONDS)
        is_same = server.is_up and server.client is client and version is not None and self.version == version
        return is_same and not healthy

    async def _check_startup(self, server: Server) -> None:
        """Checks a server that is not up, and records that it has come up or has failed to start."""
        if server.is_up or (server.failure and server.process is not None):
            return  # a failed server that the run owns must be restarted first
        if server.num_removals >= _MAX_REMOVALS:
            return  # it is healthy between its failures, so it would come up without end
        if server.process is None:  # a killed trainer may have left it paused
            with contextlib.suppress(ServerError):
                await server.client.post("/continue_generation", {}, seconds=5.0)
        if how := _exit_message(server):
            server.failure = how
        elif await server.client.is_healthy(seconds=5.0):
            server.is_up, server.failure, server.removed = True, "", asyncio.Event()
        elif time.monotonic() - server.started > _START_SECONDS:
            server.failure = f"the server {server.client.url} did not answer within {_START_SECONDS:.0f} s of its start"

    def _may_come_up(self, server: Server) -> bool:
        if server.is_up or not server.failure:
            return True
        if server.process is None:  # its owner may restart it
            return server.num_removals < _MAX_REMOVALS and time.monotonic() - server.started < _START_SECONDS
        return server.num_restarts < self._max_restarts

    # ------------------------------------------------------------------ in the thread that made the pool

    def start(self) -> None:
        """Starts the servers that the run owns. They answer later: see `await_all`."""
        for server in self.servers:
            if server.process is not None:
                self._start(server, server.process)

    def _start(self, server: Server, process: ServerProcess) -> None:
        process.start()
        server.client = Client(process.url, self._key)
        server.failure, server.started = "", time.monotonic()

    def restart_failed(self) -> list[Client]:
        """Restarts the failed servers that the run owns; returns the clients of the failed processes, to be closed.

        Raises:
            UserError: too few servers are left.
        """
        left = [server for server in self.servers if self._may_come_up(server)]
        if len(left) < self._min_servers:
            failures = "; ".join(_exit_message(server) or server.failure for server in self.servers if server.failure)
            raise UserError(
                f"{len(left)} of {len(self.servers)} rollout servers are left, and {self._min_servers} are needed: "
                f"{failures}"
            )
        clients = []
        for server in left:
            if server.failure and server.process is not None:
                _log.warning("restarting a rollout server: %s", server.failure)
                clients.append(server.client)
                server.process.stop()  # a hanging process still exists
                self._start(server, server.process)
                server.num_restarts += 1
        return clients


def _exit_message(server: Server) -> str:
    """Returns how a server's process ended; "" if it runs or the server is external."""
    return server.process.exit_message() if server.process is not None else ""
