"""Generation on SGLang's servers: sends requests, retries them on other servers, continues and aborts them."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import EpisodeRunner, Episodes
from megatron_sspo.rollout.environments import TurnRunner
from megatron_sspo.rollout.requests.format import PartialResponse, RequestFormat
from megatron_sspo.rollout.servers.build import has_grammars
from megatron_sspo.rollout.servers.client import Client, RequestRejected, ServerError
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.rollout.servers.pool import Server, ServerPool
from megatron_sspo.rollout.servers.router import Router
from megatron_sspo.types import Prompt, Sampling

_MAX_FAILURES = 8  # of one turn of a response, on healthy servers
_MAX_LATE = 3  # attempts at a turn that begins again each time, because it follows a schema
_ABORT_SECONDS = 60.0  # time limit for a server to return an aborted response
_ASK_SECONDS = 30.0  # time limit of a request that samples nothing
_FIRST_PAUSE, _MAX_PAUSE = 0.2, 10.0  # seconds between two attempts at one response
_POLL_SECONDS = 0.5
_PARSERS = "check tool_call_parser and reasoning_parser in rollouts.options, which name parsers of SGLang"
_SHORTENED = 2  # tokens that SGLang takes off the limit of a response that fills the model's positions


class Requests:
    """Samples turns, and retries on other servers if one fails.

    Args:
        router: the router that chooses the server of a request; None: this class chooses it.
        options: those of the engine. `request_seconds` is the timeout of a request. The server is then told to abort it
            and to return the tokens so far; the rest is requested again, as often as necessary. The time includes
            waiting in the server's queue, so a timeout is not a failure; a partial response that is not returned is
            one, and so is a time in which no request got a token.

    Attributes:
        takes_schemas: whether the servers can sample JSON of a schema.
    """

    def __init__(self, pool: ServerPool, format: RequestFormat, router: Router | None, options: Options) -> None:
        self.pool, self.format, self.options, self.takes_schemas = pool, format, options, has_grammars(options)
        self._router, self._seconds = router, options.request_seconds
        self._slots = asyncio.Semaphore(options.max_in_flight)
        self._run, self._numbers = secrets.token_hex(8), itertools.count()
        self._num_in_progress, self._idle_since, self._idle_seconds = 0, time.monotonic(), 0.0
        self._last_tokens = 0.0  # when the tokens of a request last came
        self._runners: dict[Episodes | None, EpisodeRunner] = {}

    async def idle_seconds(self) -> float:
        """Returns the seconds without any request in progress since the last call."""
        self._count_idle()
        found, self._idle_seconds = self._idle_seconds, 0.0
        return found

    def _count_idle(self) -> None:
        now = time.monotonic()
        self._idle_seconds += 0.0 if self._num_in_progress else now - self._idle_since
        self._idle_since = now

    @property
    def are_in_progress(self) -> bool:
        """Returns whether a server is at work on a request. Any thread may ask."""
        return self._num_in_progress > 0

    def runner(self, episodes: Episodes | None) -> EpisodeRunner:
        """Returns what runs the episodes, one instance for all generations; None has single turns.

        Raises:
            UserError: the chat template does not support a second turn.
        """
        if episodes not in self._runners:
            model = self.format.model
            self._runners[episodes] = TurnRunner(model, None) if episodes is None else episodes.on(model)
        return self._runners[episodes]

    async def ask(
        self,
        path: str,
        content: Mapping[str, Any],
        first: int,
        *,
        seconds: float = _ASK_SECONDS,
        remedy: str = _PARSERS,
    ) -> dict[str, Any]:
        """Asks a server something for which it samples nothing.

        Args:
            first: number of the server to try first, modulo their count.
            seconds: the timeout of an attempt.
            remedy: the end of the error's message.

        Raises:
            UserError: the servers reject the request, or no healthy server answers.
        """
        failures = 0
        while True:
            server = await self.pool.pick(first + failures)
            try:
                answer = await self._while_up(server, server.client.post(path, content, seconds=seconds))
                if path == "/generate":  # one that answers other requests alone is given up in the end
                    server.num_removals = 0
                return answer
            except ServerError as error:
                failures += 1
                # a parser of an unknown name is an internal error of SGLang's
                if error.is_rejected or error.status == 500 or failures == _MAX_FAILURES:
                    raise UserError(f"{error}: {remedy}") from error
                await self.pool.check_after_failure(server, str(error))
                await asyncio.sleep(_FIRST_PAUSE)

    @contextlib.contextmanager
    def _count_in_progress(self) -> Iterator[None]:
        self._count_idle()
        self._num_in_progress += 1
        try:
            yield
        finally:
            self._count_idle()
            self._num_in_progress -= 1

    async def run_turn(self, prompt: Prompt, sampling: Sampling, first: int, *, schema: str = "") -> PartialResponse:
        """Samples a turn. Waits while no server holds the weights.

        Args:
            prompt: the prompt, followed by the turns and observations so far.
            first: number of the server to try first, modulo their count. All responses to a prompt go to the same
                server, which computes the prompt once; so do all turns of a response, whose earlier turns are then in
                the server's cache.
            schema: JSON schema that the turn must follow; "": any text. Such a turn begins again if it is aborted,
                because a server would look for the beginning of the JSON in its continuation.

        Raises:
            UserError: no healthy server answers.
            RequestRejected: the servers reject the request, or a turn with a schema does not end in its time.
        """
        part = PartialResponse()
        pause, failures, num_late = _FIRST_PAUSE, 0, 0
        while True:
            async with self._slots:
                while not self._is_router_ready:
                    await asyncio.sleep(_POLL_SECONDS)
                server = await self.pool.pick(first + failures)
                version = self.pool.version
                began = time.monotonic()
                try:
                    with self._count_in_progress():
                        more = await self._send(server, prompt, sampling, part, schema)
                    self._check_versions(more, server, version)
                    if more.finish_reason:
                        return part + more
                    if not schema:
                        part = part + more
                    num_late += self._is_late(server, version, began)
                    if schema and num_late == _MAX_LATE:
                        raise RequestRejected(
                            f"the response to prompt {prompt.id} with a JSON schema did not end within "
                            f"{self._seconds:g} s in {num_late} attempts: raise rollouts.options.request_seconds"
                        )
                    continue
                except ServerError as error:
                    if error.is_rejected:
                        raise RequestRejected(f"the response to prompt {prompt.id} failed: {error}") from error
                    await self.pool.check_after_failure(server, str(error))
                    if not server.is_up or not self._is_router_ready:
                        continue
                    failures += 1
                    if failures == _MAX_FAILURES:
                        raise UserError(f"no server answers prompt {prompt.id}; the last failure: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def _is_late(self, server: Server, version: int | None, began: float) -> bool:
        """Returns whether an aborted request was aborted because of its time limit, and not because of new weights.

        It is a failure of the server if there was no reason at all, or no request got a token in that time.
        """
        is_late = time.monotonic() - began >= self._seconds
        if self.pool.version == version and not is_late:
            raise ServerError(f"{server.client.url} aborted a request that was not cancelled")
        if is_late and self._last_tokens < began:
            raise ServerError(
                f"{server.client.url} is healthy, but sampled no token of any request in "
                f"{self._seconds:g} s (request_seconds)"
            )
        return is_late

    def _check_versions(self, more: PartialResponse, server: Server, first: int | None) -> None:
        """Checks that the last syncs have reached the server of a response, which began with the version `first`."""
        newest = self.pool.version  # None: a sync is in progress
        for version, _ in more.spans:
            if (first is not None and version < first) or (newest is not None and version > newest):
                raise ServerError(
                    f"{server.client.url} has answered with weights of version {version}, which this run has not sent "
                    "since the request began: its last sync has not reached this server"
                )

    @property
    def _is_router_ready(self) -> bool:
        return self._router is None or self._router.is_ready

    async def _send(
        self, server: Server, prompt: Prompt, sampling: Sampling, part: PartialResponse, schema: str
    ) -> PartialResponse:
        """Sends one request and returns its answer. Raises ServerError if the server is removed meanwhile."""
        # The id is unique per attempt, because an earlier attempt may still be running. It is not a prefix of another
        # id, because SGLang aborts every request whose id begins with the given one.
        id = f"{self._run}-{next(self._numbers):012d}"
        content = self.format.to_request(prompt, sampling, part, id=id, schema=schema)
        client = server.client if self._router is None else self._router.client
        timer = asyncio.get_running_loop().call_later(self._seconds, self._abort, id, server)
        try:
            request = client.post("/generate", content, seconds=self._seconds + _ABORT_SECONDS)
            more = self._parse(await self._while_up(server, request), content, client.url)
            server.num_removals = 0
            if len(more.tokens):
                self._last_tokens = time.monotonic()
            return more
        except (ServerError, asyncio.CancelledError):
            self._abort(id, server)
            raise
        finally:
            timer.cancel()

    async def _while_up(self, server: Server, request: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Returns the answer to a request. Raises ServerError if its server is removed from the pool meanwhile."""
        removed, answer = asyncio.create_task(server.removed.wait()), asyncio.create_task(request)
        try:
            await asyncio.wait({removed, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise ServerError(f"{server.client.url} was removed from the pool")
        finally:
            removed.cancel()
            answer.cancel()

    def _parse(self, answer: Mapping[str, Any], content: Mapping[str, Any], url: str) -> PartialResponse:
        """Converts an answer of a server or the router."""
        inputs, limit = content["input_ids"], content["sampling_params"]["max_new_tokens"]
        try:
            more = self.format.parse(answer, len(inputs))
        except ValueError as error:
            raise ServerError(f"{url}/generate: {error}") from error
        # SGLang lowers the limit of a request to what its cache can hold, without a word.
        if more.finish_reason == "length" and len(more.tokens) < limit - _SHORTENED:
            raise UserError(
                f"{url} ended a response at its limit of tokens after {len(more.tokens)}, and {limit} were asked for "
                f"after {len(inputs)}: its key-value cache is too small. Raise rollouts.options.server."
                "mem_fraction_static, or max_total_tokens if it is set (on a CPU it is 20,000); or lower "
                "rollouts.sampling.max_tokens"
            )
        return more

    def _abort(self, id: str, server: Server) -> None:
        """Aborts a request on its server; on all servers if a router has chosen the server."""

        async def abort(client: Client) -> None:
            with contextlib.suppress(ServerError):
                await client.post("/abort_request", {"rid": id}, seconds=10.0)

        for target in self.pool.up() if self._router else [server]:
            if target.is_up:
                self.pool.run_in_background(abort(target.client))
