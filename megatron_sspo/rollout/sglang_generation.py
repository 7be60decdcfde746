"""Responses under way on SGLang's servers: asked for, moved, gone on with, given up."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import queue
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.processes.watchdog import beat
from megatron_sspo.rollout.engine import NeedsWeights, Sampling
from megatron_sspo.rollout.router import Router
from megatron_sspo.rollout.served_episodes import ServedEpisodes
from megatron_sspo.rollout.server_pool import Server, ServerPool
from megatron_sspo.rollout.sglang_client import Client, ServerError
from megatron_sspo.rollout.sglang_format import Format, Part
from megatron_sspo.types import Prompt, Rollout, RolloutGroup

_MOST_FAILURES = 8  # of one response, on servers that are well
_HAND_BACK_SECONDS = 60.0  # that a server has for what it is asked to give up
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds, between tries of one response
_POLL_SECONDS = 0.5


class Requests:
    """How one response is had, of however many turns, whatever becomes of the servers meanwhile.

    Args:
        router: chooses the server; None: we do.
        max_in_flight: requests at once, over all generations.
        seconds: after which a server is asked to hand back what it has of a response; the rest is then asked for again,
            as often as it takes. Time in its queue counts, so that this is no failure. Not to hand it back is one.
    """

    def __init__(
        self, pool: ServerPool, format: Format, router: Router | None, *, max_in_flight: int, seconds: float
    ) -> None:
        self.pool, self.format = pool, format
        self._router, self._seconds = router, seconds
        self._free = asyncio.Semaphore(max_in_flight)
        self._run, self._numbers = secrets.token_hex(8), itertools.count()
        self._num_under_way, self._idle_since, self._idle_seconds = 0, time.monotonic(), 0.0
        self._episodes: dict[int, ServedEpisodes] = {}  # by the environment's id
        self._telling: set[asyncio.Task[None]] = set()  # asyncio itself keeps no task alive

    async def idle(self) -> float:
        """Seconds in which no server was asked for anything, since the last call."""
        now = time.monotonic()
        if not self._num_under_way:
            self._idle_seconds += now - self._idle_since
        self._idle_since = now
        found, self._idle_seconds = self._idle_seconds, 0.0
        return found

    def episodes(self, environment: Environment) -> ServedEpisodes:
        """The same for all generations in that environment.

        Raises:
            UserError: the chat template has no second turn.
        """
        if id(environment) not in self._episodes:
            self._episodes[id(environment)] = ServedEpisodes(environment, self.format.turns())
        return self._episodes[id(environment)]

    async def response(
        self, prompt: Prompt, sampling: Sampling, first: int, episodes: ServedEpisodes | None = None
    ) -> Rollout:
        """One response, or all turns of one. Waits while no server holds the weights.

        Args:
            first: which of the servers to ask first. The responses to one prompt go to one, which then computes the
                prompt once, and each turn of a response to the one that has computed those before it.
            episodes: to act in; None for a single turn.

        Raises:
            UserError: the servers refuse the request, or none answers though they are well; or the environment is
                broken.
        """
        part = await self._turn(prompt, sampling, first, Part())
        if episodes is not None and part.finish_reason == "stop":
            async with episodes.episode(prompt) as observe:
                while part.finish_reason == "stop":
                    observation = await observe(self.format.text(part))
                    if observation is None:
                        break
                    between = episodes.template.tokens(part.tokens, observation)
                    if len(part.tokens) + len(between) >= self.format.longest(prompt, sampling):
                        part = replace(part, finish_reason="length")
                    else:
                        part = await self._turn(prompt, sampling, first, part.read(between))
        return self.format.rollout(part)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        if not self._num_under_way:
            self._idle_seconds += time.monotonic() - self._idle_since
        self._num_under_way += 1
        try:
            yield
        finally:
            self._num_under_way -= 1
            self._idle_since = time.monotonic()

    async def _turn(self, prompt: Prompt, sampling: Sampling, first: int, part: Part) -> Part:
        """The part with the rest of a turn, which has ended."""
        pause, failures = _FIRST_PAUSE, 0
        while True:
            async with self._free:
                server = await self._pick(first + failures)
                version = self.pool.version
                began = time.monotonic()
                try:
                    with self._counted():
                        part = part + await self._ask(server, prompt, sampling, part)
                    if part.finish_reason:
                        return part
                    is_late = time.monotonic() - began >= self._seconds
                    if self.pool.version == version and not is_late:  # nobody wanted it back: not for ever, then
                        raise ServerError(f"{server.client.url} gave up a response")
                    continue
                except ServerError as error:
                    if error.is_final:
                        raise UserError(f"the response to prompt {prompt.id} failed: {error}") from error
                    await self.pool.suspect(server, str(error))
                    if not server.is_up or not self._is_routed:
                        continue
                    failures += 1
                    if failures == _MOST_FAILURES:
                        raise UserError(f"no server answers prompt {prompt.id}; the last failure: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    @property
    def _is_routed(self) -> bool:
        """Whether requests find their way: there is no router, or it is well."""
        return self._router is None or self._router.is_well

    async def _pick(self, turn: int) -> Server:
        """One that holds the weights, in turn. Waits while there is none, and while the router is started again."""
        while not self._is_routed:
            await asyncio.sleep(_POLL_SECONDS)
        return await self.pool.pick(turn)

    async def _ask(self, server: Server, prompt: Prompt, sampling: Sampling, part: Part) -> Part:
        """A server's answer. A server that is taken out meanwhile is not waited for."""
        # of its own for every try, since an earlier one may still be there; and the beginning of no other, since SGLang
        # gives up all that begin so
        id = f"{self._run}-{next(self._numbers):012d}"
        content = self.format.request(prompt, sampling, part, id=id)
        client = server.client if self._router is None else self._router.client
        gone = asyncio.create_task(server.gone.wait())
        answer = asyncio.create_task(client.post("/generate", content, seconds=self._seconds + _HAND_BACK_SECONDS))
        late = asyncio.get_running_loop().call_later(self._seconds, self._give_up, id, server)
        try:
            await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return self.format.part(answer.result())
            raise ServerError(f"{server.client.url} was taken out")
        except (ServerError, asyncio.CancelledError):
            self._give_up(id, server)
            raise
        finally:
            late.cancel()
            gone.cancel()
            answer.cancel()

    def _give_up(self, id: str, server: Server) -> None:
        """Tells the server that nobody waits for a response any more; all of them where a router has chosen it."""

        async def tell(client: Client) -> None:
            with contextlib.suppress(ServerError):
                await client.post("/abort_request", {"rid": id}, seconds=10.0)

        for asked in self.pool.up() if self._router else [server]:
            if asked.is_up:
                task = asyncio.create_task(tell(asked.client))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)


class ServedGeneration:
    """The groups of one call, made in the engine's thread while this one does other things.

    Args:
        episodes: to act in; None for single turns.
        submit: starts a coroutine in the engine's thread.
        mend: called now and then while this is waited for: starts failed servers again.
        await_any: waits until a server answers.
    """

    def __init__(
        self,
        requests: Requests,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        group_size: int,
        *,
        episodes: ServedEpisodes | None,
        submit: Callable[[Coroutine[Any, Any, Any]], "concurrent.futures.Future[Any]"],
        mend: Callable[[], None],
        await_any: Callable[[], None],
    ) -> None:
        self._requests, self._episodes, self._mend, self._await_any = requests, episodes, mend, await_any
        self._left = len(prompts)
        self._finished: queue.SimpleQueue[tuple[int, RolloutGroup] | BaseException] = queue.SimpleQueue()
        self._work = submit(self._all(prompts, sampling, group_size))

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """Waits for a group, and returns those that are complete by now.

        Raises:
            NeedsWeights: no server is left that has them, and another has come up.
            UserError: a response cannot be had, or too few servers are left.
        """
        found: list[tuple[int, RolloutGroup]] = []
        while self._left and not found:
            try:
                self._take(found, self._finished.get(timeout=_POLL_SECONDS))
                while True:
                    self._take(found, self._finished.get_nowait())
            except queue.Empty:
                beat()  # a server that hangs is found by its pool
                self._mend()
                if not found and not self._requests.pool.ready():
                    self._await_any()
                    raise NeedsWeights from None
        if found and not self._left:  # the last group was told of a moment before the work's end
            concurrent.futures.wait([self._work], timeout=_POLL_SECONDS)
        return found

    def cancel(self) -> None:
        """Gives up what is not complete; the servers are told."""
        self._left = 0
        self._work.cancel()

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is under way any more."""
        return self._work.done()

    def _take(self, found: list[tuple[int, RolloutGroup]], item: tuple[int, RolloutGroup] | BaseException) -> None:
        if isinstance(item, BaseException):
            raise item
        found.append(item)
        self._left -= 1

    async def _all(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> None:
        tasks = [
            asyncio.create_task(self._group(number, prompt, sampling, group_size))
            for number, prompt in enumerate(prompts)
        ]
        try:
            await asyncio.gather(*tasks)
        except Exception as error:
            self._finished.put(error)
        finally:
            await _end(tasks)

    async def _group(self, number: int, prompt: Prompt, sampling: Sampling, group_size: int) -> None:
        response, episodes = self._requests.response, self._episodes
        tasks = [asyncio.create_task(response(prompt, sampling, number, episodes)) for _ in range(group_size)]
        try:
            rollouts = await asyncio.gather(*tasks)
        finally:
            await _end(tasks)
        self._finished.put((number, RolloutGroup(prompt=prompt, rollouts=rollouts)))


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
