"""sglang-router in front of the servers: it chooses the server of each request."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.servers.client import Client, ServerError
from megatron_sspo.rollout.servers.process import ServerProcess

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 60.0  # timeout of the router's start, and of a change of its servers
_POLL_SECONDS = 0.2


class RouterEnded(UserError):
    """Raised when the router's process has ended, and may be restarted."""


class Router:
    """A router that the run owns. Only servers that hold the weights are registered with it.

    Args:
        process: a process of sglang_router.launch_router, not started yet, with a fixed port that survives restarts.
        key: the API key of the router and of the servers.
        max_restarts: largest number of restarts.
    """

    def __init__(self, process: ServerProcess, key: str, max_restarts: int = 0) -> None:
        self._process, self._key, self._restarts_left = process, key, max_restarts
        self._has_servers = False
        process.start()
        self.client = Client(process.url, key)

    @property
    def is_ready(self) -> bool:
        """Returns whether the router runs and servers have been registered since its start."""
        return self._has_servers and not self._process.has_ended

    def restart(self) -> bool:
        """Restarts the router if its process has ended, and returns whether it did; no servers are registered then.

        It must be called from the thread that created the router.

        Raises:
            UserError: the router has ended more than `max_restarts` times.
        """
        if not (how := self._process.exit_message()):
            return False
        if not self._restarts_left:
            raise UserError(f"the router of the rollout servers ended: {how}")
        _log.warning("restarting the router of the rollout servers: %s", how)
        self._restarts_left -= 1
        self._has_servers = False
        self._process.stop()
        self._process.start()
        return True

    async def set_servers(self, urls: Callable[[], set[str]]) -> None:
        """Registers exactly these servers, and waits until the router sends requests to each.

        The servers' URLs are polled, so that a server that fails is not waited for.

        Raises:
            RouterEnded: the router's process has ended.
            UserError: the router does not answer, or does not register the servers in time.
        """
        wanted: set[str] = set()
        added: set[str] = set()
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if how := self._process.exit_message():
                raise RouterEnded(f"the router of the rollout servers ended: {how}")
            wanted = urls()
            with contextlib.suppress(ServerError):
                workers = {worker["url"]: worker for worker in await self._workers()}
                if workers.keys() == wanted and all(worker["is_healthy"] for worker in workers.values()):
                    self._has_servers = True
                    return
                for url in workers.keys() - wanted:
                    await self._delete(workers[url])
                for url in wanted - workers.keys() - added:
                    await self.client.post("/workers", {"url": url, "api_key": self._key}, seconds=10.0)
                    added.add(url)
            await asyncio.sleep(_POLL_SECONDS)
        raise UserError(
            f"the router of the rollout servers did not register {', '.join(sorted(wanted)) or 'the servers'} within "
            f"{_TIMEOUT_SECONDS:.0f} s: see {self._process.log}"
        )

    async def remove(self, url: str) -> None:
        """Unregisters a server. Errors are ignored, because the next `set_servers` also removes the server."""
        with contextlib.suppress(ServerError):
            for worker in await self._workers():
                if worker["url"] == url:
                    await self._delete(worker)

    async def close(self) -> None:
        """Stops the router."""
        await self.client.close()
        self._process.stop()

    async def _workers(self) -> list[dict[str, Any]]:
        return (await self.client.get("/workers", seconds=10.0))["workers"]

    async def _delete(self, worker: dict[str, Any]) -> None:
        await self.client.get(f"/workers/{worker['id']}", seconds=10.0, method="DELETE")
