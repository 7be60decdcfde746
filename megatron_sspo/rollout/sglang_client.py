"""One SGLang server, as seen over HTTP."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

_CONNECT_SECONDS = 10.0
_KEEPALIVE_SECONDS = 2.0  # less than the 5 after which SGLang closes a connection that nothing comes over
_PLAIN = ("/flush_cache",)  # what answers in words


class ServerError(Exception):
    """A request that a server did not answer as it should.

    Attributes:
        is_final: the server has looked at the request and refuses it: no other server will do otherwise.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Client:
    """Requests to one server, with its key on every one of them.

    Args:
        url: such as http://127.0.0.1:30000.
        key: what the server was started with; "" for a server without one.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def post(self, path: str, content: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """The JSON object that the server answers with.

        Raises:
            ServerError: it does not answer in time, or not with success.
        """
        return await self._request("POST", path, content, seconds)

    async def get(self, path: str, *, seconds: float) -> dict[str, Any]:
        """As `post`; an answer without content is an empty object."""
        return await self._request("GET", path, None, seconds)

    async def delete(self, path: str, *, seconds: float) -> dict[str, Any]:
        """As `get`."""
        return await self._request("DELETE", path, None, seconds)

    async def is_healthy(self, *, seconds: float) -> bool:
        """Whether the server generates a token in time."""
        try:
            await self.get("/health_generate", seconds=seconds)
        except ServerError:
            return False
        return True

    async def _request(self, method: str, path: str, content: Any, seconds: float) -> dict[str, Any]:
        try:
            try:
                status, text = await self._exchange(method, path, content, seconds)
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                # a connection that the server has closed meanwhile: once more, on a new one
                status, text = await self._exchange(method, path, content, seconds)
        except TimeoutError:
            raise ServerError(f"{self.url}{path} did not answer within {seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise ServerError(f"{self.url}{path}: {type(error).__name__} {error}") from error
        if not 200 <= status < 300:
            is_final = status in (400, 401, 403, 404, 422)
            raise ServerError(f"{self.url}{path} answered {status}: {text[:500]}", is_final=is_final)
        try:
            found = (json.loads(text) if text else None) or {}
        except ValueError as error:
            if path.partition("?")[0] in _PLAIN:
                return {}
            raise ServerError(f"{self.url}{path} answered what is no JSON: {text[:200]!r}") from error
        if not isinstance(found, dict):
            raise ServerError(f"{self.url}{path} answered no JSON object: {text[:200]!r}")
        if found.get("success") is False:
            raise ServerError(f"{self.url}{path}: {found.get('message') or found.get('error_message')}", is_final=True)
        return found

    async def _exchange(self, method: str, path: str, content: Any, seconds: float) -> tuple[int, str]:
        if self._is_closed:
            raise ServerError(f"nothing is asked of {self.url} any more")
        if self._session is None:  # here, because it belongs to the loop that it is made in
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
            self._session = aiohttp.ClientSession(headers=self._headers, connector=connector)
        timeout = aiohttp.ClientTimeout(total=seconds, connect=_CONNECT_SECONDS)
        async with self._session.request(method, self.url + path, json=content, timeout=timeout) as response:
            return response.status, await response.text()

    async def close(self) -> None:
        """Ends what is under way; nothing more can be asked."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None
