"""An HTTP client of one SGLang server."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from megatron_sspo.errors import UserError

_CONNECT_SECONDS = 10.0
_KEEPALIVE_SECONDS = 2.0  # less than the 5 s after which SGLang closes an idle connection
_REJECTED = (400, 401, 403, 404, 422)  # every server would reject such a request


class RequestRejected(UserError):
    """A request that a server rejects, as it would again."""


class ServerError(Exception):
    """A request that failed."""

    def __init__(self, message: str, *, is_rejected: bool = False, status: int = 0) -> None:
        super().__init__(message)
        self.is_rejected = is_rejected  # the request itself, so that every other server would reject it too
        self.status = status  # of the server's answer, if it has one


class Client:
    """A client of one server, which sends the API key with every request.

    Args:
        url: the server's URL, such as http://127.0.0.1:30000.
        key: the server's API key; "" for a server without one.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def post(self, path: str, content: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Sends a POST request and returns the JSON object of the response; an empty response is an empty object.

        Raises:
            ServerError: the server does not answer in time, or reports a failure.
        """
        return await self._request("POST", path, content, seconds)

    async def get(self, path: str, *, seconds: float, method: str = "GET") -> dict[str, Any]:
        """Sends a GET request, or one of another method; the result and the errors are those of `post`."""
        return await self._request(method, path, None, seconds)

    async def is_healthy(self, *, seconds: float) -> bool:
        """Returns whether the server generates a token in time."""
        try:
            await self.get("/health_generate", seconds=seconds)
        except ServerError:
            return False
        return True

    async def _request(self, method: str, path: str, content: Any, seconds: float) -> dict[str, Any]:
        where = f"{self.url}{path}"
        try:
            status, text = await self._exchange(method, path, content, seconds)
        except aiohttp.ConnectionTimeoutError:
            raise ServerError(f"{self.url} did not accept a connection within {_CONNECT_SECONDS:.0f} s") from None
        except TimeoutError:
            raise ServerError(f"{where} did not answer within {seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerError(f"{where}: {type(error).__name__} {error}") from error
        if not 200 <= status < 300:
            message = f"{where} answered {status}: {text[:500]}"
            raise ServerError(message, is_rejected=status in _REJECTED, status=status)
        if path.startswith("/flush_cache"):  # which answers with plain text
            return {}
        try:
            found = json.loads(text or "{}") or {}
        except ValueError as error:
            raise ServerError(f"{where} did not answer with JSON: {text[:200]!r}") from error
        if found.get("success") is False:
            raise ServerError(f"{where}: {found.get('message') or found.get('error_message')}", is_rejected=True)
        return found

    async def _exchange(self, method: str, path: str, content: Any, seconds: float) -> tuple[int, str]:
        if self._is_closed:
            raise ServerError(f"the client of {self.url} is closed")
        if self._session is None:  # created here, because a session belongs to the running event loop
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
            self._session = aiohttp.ClientSession(headers=self._headers, connector=connector)
        timeout = aiohttp.ClientTimeout(total=seconds, connect=_CONNECT_SECONDS)
        # A redirection would send the key, and a POST request as a GET request, to another address.
        options = {"json": content, "timeout": timeout, "allow_redirects": False}
        async with self._session.request(method, self.url + path, **options) as response:
            return response.status, await response.text("utf-8")

    async def close(self) -> None:
        """Closes the session and its connections; later requests raise ServerError."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None
