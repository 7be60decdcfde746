"""sglang-router in front of the servers: it chooses which of them answers."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.servers import ServerProcess
from megatron_sspo.rollout.sglang_client import Client, ServerError

_log = logging.getLogger(__name__)

_SECONDS = 60.0  # for its start, and for a change of its servers
_POLL_SECONDS = 0.2


class Router:
    """A router that the run owns. It knows the servers that hold the weights, and no others.

    Args:
        process: of sglang_router.launch_router, not started yet, with a port of its own, which it keeps when it is
            started again.
        key: its own and the servers'.
        max_restarts: how often it is started again.
    """

    def __init__(self, process: ServerProcess, key: str, max_restarts: int = 0) -> None:
        self._process, self._key, self._restarts_left = process, key, max_restarts
        self._has_servers = False
        process.start()
        self.client = Client(process.url, key)

    @property
    def is_well(self) -> bool:
        """Whether it runs and has been given servers since its start."""
        return self._has_servers and not self._process.has_ended

    def restart(self) -> bool:
        """Starts it again where it has ended; then it knows no servers. To be called from the thread that made it.

        Raises:
            UserError: it has ended too often.
        """
        if not self._process.has_ended:
            return False
        how = self._process.ended()
        if not self._restarts_left:
            raise UserError(f"the router of the rollout servers is gone: {how}")
        _log.warning("the router of the rollout servers is started again: %s", how)
        self._restarts_left -= 1
        self._has_servers = False
        self._process.stop()
        self._process.start()
        return True

    async def set_servers(self, urls: Callable[[], set[str]]) -> None:
        """Makes these its servers, and waits until it sends requests to each.

        Args:
            urls: asked again and again: a server that goes meanwhile is not waited for.

        Raises:
            UserError: it does not answer, or does not take them.
        """
        wanted: set[str] = set()
        added: set[str] = set()
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            if how := self._process.ended():
                raise UserError(f"the router of the rollout servers is gone: {how}")
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
            f"the router of the rollout servers did not take {', '.join(sorted(wanted)) or 'a request'} within "
            f"{_SECONDS:.0f} s: see {self._process.log}"
        )

    async def remove(self, url: str) -> None:
        """Sends no more requests to a server, if it can be told so: the next `set_servers` does it again."""
        with contextlib.suppress(ServerError):
            for worker in await self._workers():
                if worker["url"] == url:
                    await self._delete(worker)

    async def close(self) -> None:
        """Stops it."""
        await self.client.close()
        self._process.stop()

    async def _workers(self) -> list[dict[str, Any]]:
        return (await self.client.get("/workers", seconds=10.0))["workers"]

    async def _delete(self, worker: dict[str, Any]) -> None:
        await self.client.delete(f"/workers/{worker['id']}", seconds=10.0)
