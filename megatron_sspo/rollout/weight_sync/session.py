"""One weight sync: the servers that take part, and the errors of those that have left it."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from megatron_sspo.rollout.servers.client import Client, ServerError
from megatron_sspo.weights.gather import GatherPlan, NamedTensor
from megatron_sspo.weights.pieces import is_sent_with_next

Observe = Callable[[Iterable[NamedTensor]], Iterable[NamedTensor]]
"""A function that yields a stream unchanged and reads it on the way, for example to compute checksums."""

Submit = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]
"""Starts a coroutine in the thread of the engine's requests."""

Answers = dict[Any, dict[str, Any] | ServerError]
_SECONDS = 600.0  # timeout of a request
_CONTROL_SECONDS = 60.0  # timeout of the first requests, which move no weights: a hanging server is found early
_FLUSH_SECONDS = 60  # for which a server waits for running requests
_CONTROL_PATHS = ("/pause_generation", "/begin_weight_update", "/unload_lora_adapter", "/model_info")
T = TypeVar("T")


class Transport(Protocol):
    """A way to move weights to servers. By default rank 0 gets all of them, and there is nothing to release.

    Transports have `bucket_bytes`, the number of bytes at which a bucket or a request is complete, and `tp_size`, the
    number of tensor-parallel ranks of a server, each of which gets a copy.
    """

    def send(
        self, session: "SyncSession", tensors: Iterable[NamedTensor], version: str, observe: Observe | None = None
    ) -> None:
        """Replaces all weights of the session's servers. Servers that fail, or miss some weights, leave the session.

        The stream is consumed unless an error ends the run, because it is a collective with the other ranks.

        Args:
            tensors: a stream, or the plan by which the trainer's ranks gather one.
            version: the name of the weights' version, which servers report with the tokens that they sample.
            observe: sees every weight once, in the order of the stream.
        """
        ...

    def participate(self, tensors: Iterable[NamedTensor]) -> None:
        """Takes part in `send`, a collective, in the other trainer processes."""
        for _ in at_rank_0(tensors):
            pass

    def close(self, session: "SyncSession | None" = None) -> None:
        """Releases the transport's resources.

        Args:
            session: on rank 0 the servers that stay, which release theirs; None if there are none.
        """


class SyncSession:
    """The servers of one weight sync, and the requests to them."""

    def __init__(self, servers: Mapping[Any, Client], submit: Submit) -> None:
        self.servers: dict[Any, Client] = dict(servers)  # those that have all that was sent, by the engine's keys
        self.failures: dict[Any, ServerError] = {}  # of the servers that have failed, by the same keys
        self.num_bytes = 0  # of tensors that were sent
        self._submit = submit

    @contextmanager
    def only(self, keys: Collection[Any]) -> Iterator[None]:
        """Leaves the other servers out meanwhile."""
        others = {key: client for key, client in self.servers.items() if key not in keys}
        self.servers = {key: client for key, client in self.servers.items() if key in keys}
        yield
        self.servers |= others

    def begin(self) -> None:
        """Opens a weight update; if a killed trainer has left one open, ends that first."""
        answers = self.start("/begin_weight_update", {}).answers()
        left_open = [key for key, answer in answers.items() if "already open" in str(answer)]
        self._drop_failed({key: answer for key, answer in answers.items() if key not in left_open})
        self.post("/end_weight_update", {}, to=left_open)
        self.post("/begin_weight_update", {}, to=left_open)

    def end(self, version: str) -> None:
        """Closes the update: from now on the servers have these weights."""
        self.post("/end_weight_update", {})
        self.post("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    def abort_update(self) -> None:
        """Ends an incomplete update. The stream cannot be repeated, so servers that missed a part need another sync.

        All servers leave the session. They abort the requests that they have retracted, so that nothing is generated
        from incomplete weights.
        """
        self.post("/pause_generation", {"mode": "abort"})
        self.post("/end_weight_update", {})
        self.post("/continue_generation", {})
        self.servers.clear()

    def flush(self, *, has_retracted: bool) -> None:
        """Flushes the servers' prefix cache, which was computed with the old weights.

        SGLang flushes when no request is running, so it waits for running ones, such as a health check. It would wait
        in vain for requests that it has retracted itself (`has_retracted`), so no wait is requested then.
        """
        self.post("/flush_cache" if has_retracted else f"/flush_cache?timeout={_FLUSH_SECONDS}", {})

    def post(
        self, path: str, content: Mapping[str, Any], *, to: Iterable[Any] | None = None
    ) -> dict[Any, dict[str, Any]]:
        """Sends the same request to every server, or to those in `to`. Returns the answers of servers that are left."""
        keys = [key for key in (self.servers if to is None else to) if key in self.servers]
        return self.finish(self.start_each(path, dict.fromkeys(keys, content)))

    def start(self, path: str, content: Mapping[str, Any] | None) -> "PendingRequests":
        """Starts the same request to every server."""
        return self.start_each(path, dict.fromkeys(self.servers, content))

    def start_each(self, path: str, contents: Mapping[Any, Mapping[str, Any] | None]) -> "PendingRequests":
        """Starts a request to every server, each with its own content; without content, a GET request."""
        return PendingRequests(
            {key: self._submit(_ask(self.servers[key], path, content)) for key, content in contents.items()}
        )

    def versions(self) -> dict[Any, str]:
        """Returns the name of the weights' version that each server reports. A server that fails leaves the session."""
        answers = self.finish(self.start("/model_info", None))
        return {key: answer["weight_version"] for key, answer in answers.items()}

    def finish(self, requests: "PendingRequests", *, seconds: float | None = None) -> dict[Any, dict[str, Any]]:
        """Waits as `PendingRequests.answers`, and returns the answers. A server that has failed leaves the session."""
        return self._drop_failed(requests.answers(seconds))

    def _drop_failed(self, answers: "Answers") -> dict[Any, dict[str, Any]]:
        good = {}
        for key, answer in answers.items():
            if isinstance(answer, ServerError):
                self.failures[key] = answer
                del self.servers[key]
            else:
                good[key] = answer
        return good


def at_rank_0(tensors: Iterable[NamedTensor], observe: Observe | None = None) -> Iterable[NamedTensor]:
    """Returns a stream of all weights on rank 0; the other ranks only send theirs. A collective."""
    stream = tensors.at_rank_0() if isinstance(tensors, GatherPlan) else tensors
    return stream if observe is None else observe(stream)


class PendingRequests:
    """Requests in progress, one to each of some servers."""

    def __init__(self, pending: "Mapping[Any, Future[dict[str, Any] | ServerError]]") -> None:
        self._pending = pending

    def has_failed(self) -> bool:
        """Returns whether a server has failed already, while others may still be at work."""
        return any(request.done() and isinstance(request.result(), ServerError) for request in self._pending.values())

    def wait(self, seconds: float) -> bool:
        """Waits for all requests, at most `seconds`. Returns whether all have been answered."""
        return not wait(self._pending.values(), timeout=seconds).not_done

    def answers(self, seconds: float | None = None) -> Answers:
        """Waits for all requests, and returns the answer of each server, or its error.

        Args:
            seconds: servers that do not answer within this time have failed; None waits as long as the requests do.
        """
        _, late = wait(self._pending.values(), timeout=seconds)
        for request in late:
            request.cancel()
        error = ServerError(f"a server did not answer within {seconds} s of the loss of the weights' process group")
        return {key: error if request in late else request.result() for key, request in self._pending.items()}


async def _ask(client: Client, path: str, content: Mapping[str, Any] | None) -> dict[str, Any] | ServerError:
    seconds = _CONTROL_SECONDS if path in _CONTROL_PATHS else _SECONDS
    request = client.get(path, seconds=seconds) if content is None else client.post(path, content, seconds=seconds)
    try:
        return await request
    except ServerError as error:
        return error


def buckets(
    tensors: Iterable[NamedTensor], num_bytes: int, *, device: torch.device | str = "cpu"
) -> Iterator[list[NamedTensor]]:
    """Yields the stream as `in_buckets`. The tensors are copies on `device`."""
    copies = ((name, tensor.detach().to(device, copy=True)) for name, tensor in tensors)
    return in_buckets(copies, num_bytes, lambda copy: (copy[0], copy[1].dtype, copy[1].nbytes))


def in_buckets(
    items: Iterable[T], num_bytes: int, describe: Callable[[T], tuple[str, torch.dtype, int]]
) -> Iterator[list[T]]:
    """Yields items as lists of at least `num_bytes`, except for the last.

    Tensors of one request (`is_sent_with_next`) are in one list.

    Args:
        describe: returns a tensor's name, its dtype, and the bytes to send.
    """
    bucket: list[T] = []
    filled = 0
    for item in items:
        name, dtype, size = describe(item)
        bucket.append(item)
        filled += size
        if filled >= num_bytes and not is_sent_with_next(name, dtype):
            yield bucket
            bucket, filled = [], 0
    if bucket:
        yield bucket
