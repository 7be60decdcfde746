"""One sync: the servers that are still in it, and why others are not any more."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import torch

from megatron_sspo.rollout.sglang_client import Client, ServerError

Named = tuple[str, torch.Tensor]
Submit = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]
"""Starts a coroutine in the thread of the engine's requests."""

_SECONDS = 600.0  # for one request
_FIRST_SECONDS = 60.0  # for the first one, which moves nothing: a server that hangs is to be found soon
T = TypeVar("T")


class Transport(Protocol):
    """A way for weights to go."""

    def send(self, session: "Session", tensors: Iterable[Named], version: int) -> None:
        """Replaces all weights of the session's servers. Those that fail leave the session.

        The stream is consumed whatever happens: on other ranks it is a collective.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


class Session:
    """What a transport sends to.

    Attributes:
        servers: those that have not failed, by whatever the engine knows them.
        failures: the others.
        num_bytes: of tensors that were sent.
    """

    def __init__(self, servers: Mapping[Any, Client], submit: Submit) -> None:
        self.servers: dict[Any, Client] = dict(servers)
        self.failures: dict[Any, ServerError] = {}
        self.num_bytes = 0
        self._submit = submit

    def post(self, path: str, content: Mapping[str, Any]) -> None:
        """The same request to every server, answered by all that are left."""
        self.finish(self.start(path, content))

    def start(self, path: str, content: Mapping[str, Any]) -> "Future[dict[Any, ServerError]]":
        """The same request to every server, under way."""
        return self._submit(_post_all(self.servers, path, dict.fromkeys(self.servers, content)))

    def start_each(self, path: str, contents: Mapping[Any, Mapping[str, Any]]) -> "Future[dict[Any, ServerError]]":
        """A request of its own to every server, under way."""
        return self._submit(_post_all(self.servers, path, contents))

    def finish(self, request: "Future[dict[Any, ServerError]]") -> None:
        """Waits for a request. A server that has failed leaves the session."""
        for key, error in request.result().items():
            self.failures[key] = error
            del self.servers[key]


async def _post_all(
    servers: Mapping[Any, Client], path: str, contents: Mapping[Any, Mapping[str, Any]]
) -> dict[Any, ServerError]:
    """One request to each server. Returns the errors."""
    keys = list(servers)
    seconds = _FIRST_SECONDS if path == "/begin_weight_update" else _SECONDS
    sent = [servers[key].post(path, contents[key], seconds=seconds) for key in keys]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    found = {}
    for key, answer in zip(keys, answers, strict=True):
        if isinstance(answer, ServerError):
            found[key] = answer
        elif isinstance(answer, BaseException):
            raise answer
    return found


def buckets(tensors: Iterable[Named], num_bytes: int) -> Iterator[list[Named]]:
    """The stream, in lists of at least `num_bytes` each, the last aside. The tensors are on the host, and copies."""
    bucket: list[Named] = []
    filled = 0
    for name, tensor in tensors:
        on_host = tensor.detach().cpu()
        bucket.append((name, on_host.clone() if on_host.data_ptr() == tensor.data_ptr() else on_host))
        filled += tensor.nbytes
        if filled >= num_bytes:
            yield bucket
            bucket, filled = [], 0
    if bucket:
        yield bucket
