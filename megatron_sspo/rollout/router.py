"""sglang-router in front of the servers: it chooses which of them answers."""

import asyncio
import contextlib
import time
from collections.abc import Iterable

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

    async def set_servers(self, urls: Iterable[str]) -> None:
        """Makes these its servers, and waits until it sends requests to each.

        Raises:
            UserError: it does not answer, or does not take them.
        """
        wanted = set(urls)
        changed = False
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            if how := self._process.ended():
                raise UserError(f"the router of the rollout servers is gone: {how}")
            with contextlib.suppress(ServerError):
                workers = (await self.client.get("/workers", seconds=10.0))["workers"]
                if not changed:
                    await self._change({worker["url"]: worker["id"] for worker in workers}, wanted)
                    changed = True
                elif {worker["url"] for worker in workers} == wanted and all(w["is_healthy"] for w in workers):
                    return
            await asyncio.sleep(_POLL_SECONDS)
        raise UserError(
            f"the router of the rollout servers did not take {', '.join(sorted(wanted)) or 'a request'} within "
            f"{_SECONDS:.0f} s: see {self._process.log}"
        )

    async def close(self) -> None:
        """Stops it."""
        await self.client.close()
        self._process.stop()

    async def _change(self, known: dict[str, str], wanted: set[str]) -> None:
        for url in known.keys() - wanted:
            await self.client.delete(f"/workers/{known[url]}", seconds=10.0)
        for url in wanted - known.keys():
            await self.client.post("/workers", {"url": url, "api_key": self._key}, seconds=10.0)
