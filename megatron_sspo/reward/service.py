"""A model behind a URL, which a reward asks."""

import os
from collections.abc import Mapping
from typing import Any

import aiohttp

from megatron_sspo.errors import UserError
from megatron_sspo.reward.awaited import Unscorable

_REFUSED = (400, 401, 403, 404, 413, 422)  # the same request would be refused again


def check_service(who: str, url: str, key_variable: str) -> None:
    """Raises UserError if a URL is none, or if the environment variable that is to hold the key is not set."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{who}: the option url is {url!r}: it must begin with http:// or https://")
    if key_variable and not os.environ.get(key_variable):
        raise UserError(
            f"{who}: the environment variable {key_variable}, which the option key_variable names, is not set: set it "
            "to the key of the server, or leave key_variable out for a server without one"
        )


class Service:
    """A client of one server, whose addresses begin with `url`; it sends the key in `key_variable`, "" sends none."""

    def __init__(self, url: str, key_variable: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {os.environ[key_variable]}"} if key_variable else {}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, content: Mapping[str, Any]) -> Any:
        """Returns the JSON that answers a POST request.

        Raises Unscorable if the server refuses the request, and ConnectionError if it does not answer, or fails
        otherwise.
        """
        if self._session is None:  # made here, because it belongs to the running event loop
            # the caller limits the time and the number of requests
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        address = f"{self.url}{path}"
        try:
            # a redirection would send the key to another address
            async with self._session.post(address, json=content, allow_redirects=False) as answer:
                text = await answer.text("utf-8", "replace")
                if answer.status == 200:
                    return await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ConnectionError(f"{address}: {type(error).__name__} {error}") from error
        kind = Unscorable if answer.status in _REFUSED else ConnectionError
        raise kind(f"{address} answered {answer.status}: {text[:300]}")

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
