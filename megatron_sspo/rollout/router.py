"""sglang-router in front of the servers: it chooses which of them answers."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.servers import ServerProcess
from megatron_sspo.rollout.sglang_client import Client, ServerError

_SECONDS = 60.0  # for its start, and for a change of its servers
_POLL_SECONDS = 0.2


class Router:
    """A router that the run owns. It knows the servers that hold the weights, and no others.

    Args:
        process: of sglang_router.launch_router, not started yet.
        key: its own and the servers'.
    """

    def __init__(self, process: ServerProcess, key: str) -> None:
        self._process, self._key = process, key
        process.start()
        self.client = Client(process.url, key)

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
