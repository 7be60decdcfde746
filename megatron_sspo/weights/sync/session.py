"""One sync: the servers that are still in it, and why others are not any more."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import torch

from megatron_sspo.rollout.sglang_client import Client, ServerError

Named = tuple[str, torch.Tensor]
Submit = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]
"""Starts a coroutine in the thread of the engine's requests."""

Answers = dict[Any, dict[str, Any] | ServerError]
_SECONDS = 600.0  # for one request
_FIRST_SECONDS = 60.0  # for those that come first and move nothing: a server that hangs is to be found soon
_FLUSH_SECONDS = 60  # that a server waits for what is under way
_FIRST = ("/pause_generation", "/begin_weight_update")


class Transport(Protocol):
    """A way for weights to go."""

    def send(self, session: "Session", tensors: Iterable[Named], version: int) -> None:
        """Replaces all weights of the session's servers. Those that fail, or miss some of them, leave the session.

        The stream is consumed whatever happens: on other ranks it is a collective.
        """
        ...

    def follow(self, tensors: Iterable[Named]) -> None:
        """What the other trainer processes do while rank 0 sends. The stream is a collective."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


class Session:
    """What a transport sends to.

    Attributes:
        servers: those that have what was sent so far, by whatever the engine knows them.
        failures: those that have failed.
        num_bytes: of tensors that were sent.
    """

    def __init__(self, servers: Mapping[Any, Client], submit: Submit) -> None:
        self.servers: dict[Any, Client] = dict(servers)
        self.failures: dict[Any, ServerError] = {}
        self.num_bytes = 0
        self._submit = submit

    def begin(self) -> None:
        """Opens an update of weights; first ends one that a trainer that was killed has left open."""
        answers = self.start("/begin_weight_update", {}).result()
        left_open = [key for key, answer in answers.items() if "already open" in str(answer)]
        self._drop_failed({key: answer for key, answer in answers.items() if key not in left_open})
        self.post("/end_weight_update", {}, to=left_open)
        self.post("/begin_weight_update", {}, to=left_open)

    def end(self, version: int) -> None:
        """Closes it: from here on the servers have these weights."""
        self.post("/end_weight_update", {})
        self.post("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})

    def break_off(self) -> None:
        """Ends an update in the middle: the stream cannot be had again, and who missed some of it needs another.

        The servers leave the session, and hand back what they have put back themselves: nothing is generated from what
        they hold.
        """
        self.post("/pause_generation", {"mode": "abort"})
        self.post("/end_weight_update", {})
        self.post("/continue_generation", {})
        self.servers.clear()

    def flush(self, *, put_back: bool) -> None:
        """Has the servers forget what they keep of prompts under the old weights.

        SGLang does so when nothing is under way, and waits for what is, such as somebody's question after its health.
        For what it has put back itself (`put_back`) it would wait in vain.
        """
        self.post("/flush_cache" if put_back else f"/flush_cache?timeout={_FLUSH_SECONDS}", {})

    def post(
        self, path: str, content: Mapping[str, Any], *, to: Iterable[Any] | None = None
    ) -> dict[Any, dict[str, Any]]:
        """The same request to every server, or to some of them; the answers of those that are left."""
        keys = [key for key in (self.servers if to is None else to) if key in self.servers]
        return self.finish(self.start_each(path, dict.fromkeys(keys, content)))

    def start(self, path: str, content: Mapping[str, Any]) -> "Future[Answers]":
        """The same request to every server, under way."""
        return self._submit(_post_all(self.servers, path, dict.fromkeys(self.servers, content)))

    def start_each(self, path: str, contents: Mapping[Any, Mapping[str, Any]]) -> "Future[Answers]":
        """A request of its own to every server, under way."""
        return self._submit(_post_all(self.servers, path, contents))

    def finish(self, request: "Future[Answers]") -> dict[Any, dict[str, Any]]:
        """Waits for a request, and returns the answers. A server that has failed leaves the session."""
        return self._drop_failed(request.result())

    def _drop_failed(self, answers: "Answers") -> dict[Any, dict[str, Any]]:
        good = {}
        for key, answer in answers.items():
            if isinstance(answer, ServerError):
                self.failures[key] = answer
                del self.servers[key]
            else:
                good[key] = answer
        return good


async def _post_all(servers: Mapping[Any, Client], path: str, contents: Mapping[Any, Mapping[str, Any]]) -> Answers:
    """One request to each server that there is a content for."""
    seconds = _FIRST_SECONDS if path in _FIRST else _SECONDS

    async def post(key: Any) -> dict[str, Any] | ServerError:
        try:
            return await servers[key].post(path, contents[key], seconds=seconds)
        except ServerError as error:
            return error

    keys = list(contents)
    return dict(zip(keys, await asyncio.gather(*map(post, keys)), strict=True))


def consume(tensors: Iterable[Named]) -> None:
    """Takes part in a stream without any use for it."""
    for _ in tensors:
        pass


def buckets(tensors: Iterable[Named], num_bytes: int, *, device: torch.device | str = "cpu") -> Iterator[list[Named]]:
    """The stream, in lists of at least `num_bytes` each, the last aside. The tensors are on the device, and copies."""
    bucket: list[Named] = []
    filled = 0
    for name, tensor in tensors:
        moved = tensor.detach().to(device)
        bucket.append((name, moved.clone() if moved.data_ptr() == tensor.data_ptr() else moved))
        filled += tensor.nbytes
        if filled >= num_bytes:
            yield bucket
            bucket, filled = [], 0
    if bucket:
        yield bucket
