"""SGLang servers as a rollout engine: token ids go out over HTTP, token ids and log-probs come back."""

import asyncio
import base64
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoTokenizer

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import NeedsWeights, RolloutEngine, Sampling
from megatron_sspo.rollout.server_pool import Server, ServerPool
from megatron_sspo.rollout.servers import ServerProcess, find_python
from megatron_sspo.rollout.sglang_client import Client, ServerError
from megatron_sspo.rollout.stopping import end_tokens
from megatron_sspo.routes import pack_routes
from megatron_sspo.types import FinishReason, Prompt, Rollout, RolloutGroup
from megatron_sspo.weights.sync.disk import DiskTransport
from megatron_sspo.weights.sync.distributed import DistributedTransport
from megatron_sspo.weights.sync.session import Session, Transport
from megatron_sspo.weights.sync.tensor import TensorTransport

_MOST_FAILURES = 8  # of one response, on servers that are well
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds, between tries of one response
_MEND_SECONDS = 0.5  # between two looks for servers to start again
T = TypeVar("T")


def engine(
    model_path: Path,
    *,
    num_servers: int = 1,
    python: str | None = None,
    server: Mapping[str, Any] | None = None,
    urls: Sequence[str] = (),
    run_folder: Path | None = None,
    routes: bool = False,
    max_in_flight: int = 1024,
    request_seconds: float = 600.0,
    health_seconds: float = 60.0,
    fewest_servers: int = 1,
    max_restarts: int = 5,
    transport: Literal["tensor", "disk", "distributed"] = "tensor",
    bucket_bytes: int = 256 * 1024**2,
) -> RolloutEngine:
    """An engine that owns servers on this machine, or uses given ones.

    Args:
        model_path: config.json and tokenizer.
        num_servers: how many to start, where no `urls` are given; on a machine with GPUs each gets its share of them.
        python: the interpreter of SGLang's environment; by default that of `make install-sglang`.
        server: options of SGLang's server, by their own names: {"tp_size": 2, "mem_fraction_static": 0.8}.
        urls: servers that are there already. Their key is read from the environment: MEGATRON_SSPO_SERVER_KEY.
        run_folder: the servers' output goes to `servers/` in there; the loop sets it.
        routes: has the servers report which experts each token went to, for routing replay (R3).
        max_in_flight: responses that are asked for at once, over all servers.
        request_seconds: for one response; one that takes longer is asked for again elsewhere.
        health_seconds: within which a server has to generate a token; one that does not is taken out.
        fewest_servers: with fewer than this the run ends.
        max_restarts: of each server that the run owns.
        transport: how weights go to the servers: in requests, through a folder that both see, or by broadcast.
        bucket_bytes: of weights that go out in one request or broadcast.

    Raises:
        UserError: SGLang is not there, or a server does not start.
    """
    options = _Options(
        num_servers=num_servers,
        server={**({"enable_return_routed_experts": True} if routes else {}), **(server or {})},
        urls=tuple(urls),
        routes=routes,
        log_folder=(run_folder or Path("runs")) / "servers",
        max_in_flight=max_in_flight,
        request_seconds=request_seconds,
        health_seconds=health_seconds,
        fewest_servers=fewest_servers,
        max_restarts=max_restarts,
        transport=transport,
        bucket_bytes=bucket_bytes,
    )
    if transport not in _TRANSPORTS:
        raise UserError(f"there is no transport {transport!r}: it is one of {', '.join(_TRANSPORTS)}")
    is_driver = not dist.is_initialized() or dist.get_rank() == 0
    return SGLangEngine(Path(model_path), options, find_python(python) if is_driver and not urls else None, is_driver)


@dataclass(frozen=True, kw_only=True)
class _Options:
    num_servers: int
    server: Mapping[str, Any]
    urls: tuple[str, ...]
    routes: bool
    log_folder: Path
    max_in_flight: int
    request_seconds: float
    health_seconds: float
    fewest_servers: int
    max_restarts: int
    transport: str
    bucket_bytes: int

    @property
    def tp_size(self) -> int:
        """Tensor-parallel ranks of a server."""
        return int(self.server.get("tp_size", 1))


class SGLangEngine:
    """Rank 0 drives the servers; on the other ranks it takes part in what is collective and does nothing else.

    `rollout_log_probs` are of the distribution after temperature, and before top-p. A seed does not repeat a response:
    the servers batch requests as they come.

    A server that fails is taken out, and its requests are made to the others. One that the run owns is started again;
    it serves from the next sync on, or, where no other is left, from one that `NeedsWeights` asks for.
    """

    replicated = False

    def __init__(self, model_path: Path, options: _Options, python: Path | None, is_driver: bool) -> None:
        self._options = options
        self._policy_version: int | None = None
        self._is_driver = is_driver
        self._done: dict[tuple[int, int], Rollout] = {}  # of an unfinished call: (prompt, number) -> response
        if not is_driver:
            return
        config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
        self._tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
        self._end_tokens = end_tokens(model_path, config, self._tokenizer)
        self._num_experts: int = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", 0)
        self._max_positions: int = config.get_text_config().max_position_embeddings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sglang", daemon=True)
        self._thread.start()
        self.pool = ServerPool(
            self._given() if python is None else self._own(python, model_path),
            fewest=options.fewest_servers,
            max_restarts=options.max_restarts,
            health_seconds=options.health_seconds,
        )
        self._transport = _TRANSPORTS[options.transport](options, model_path)
        try:
            for server in self.pool.servers:
                if server.process is not None:
                    server.process.start()
                    server.client = Client(server.process.url, server.process.key)
            self._run(self.pool.await_all())
            failures = [server.failure for server in self.pool.servers if server.failure]
            if failures:
                raise UserError(f"a rollout server did not start: {failures[0]}")
        except BaseException:
            self.close()
            raise

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Sends a stream of tensors, named and shaped as in a checkpoint on disk, to every server that is up.

        A server that fails meanwhile is taken out.

        Raises:
            UserError: the servers refuse the weights, or too few servers are left.
        """
        if policy_version != self._policy_version:
            self._done.clear()
        self._policy_version = None
        if not self._is_driver:
            for _ in tensors:
                pass
        else:
            self._run(self.pool.check(ask=False))  # one that is frozen shows when it is sent something
            self._restart_failed()
            self._run(self.pool.await_any(), mend=True)
            session = Session({server: server.client for server in self.pool.up()}, self._submit)
            self._transport.send(session, tensors, policy_version)
            errors = list(session.failures.values())
            if not session.servers and errors and all(error.is_final for error in errors):
                raise UserError(f"the rollout servers refuse the weights: {errors[0]}")
            for server, error in session.failures.items():
                self.pool.take_out(server, str(error))
            for server in self.pool.up():
                server.version = policy_version
        self._policy_version = policy_version

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, group_size: int, seed: int
    ) -> list[RolloutGroup]:
        """`group_size` responses to each prompt, in the prompts' order.

        Raises:
            NeedsWeights: no server is left that has them, and another has come up.
            UserError: no weights were loaded, a prompt leaves no room for a response, or too few servers are left.
        """
        if self._policy_version is None:
            raise UserError("the servers have no weights: call load_weights before generate")
        for prompt in prompts:
            if not 0 < len(prompt.tokens) < self._max_positions:
                raise UserError(
                    f"prompt {prompt.id} has {len(prompt.tokens)} tokens and the model {self._max_positions} "
                    "positions: drop or shorten it"
                )
        self._run(self._generate_all(prompts, sampling, group_size), mend=True)
        if len(self._done) < len(prompts) * group_size:
            self._restart_failed()
            self._run(self.pool.await_any(), mend=True)
            raise NeedsWeights
        groups = [
            RolloutGroup(prompt=prompt, rollouts=[self._done[number, i] for i in range(group_size)])
            for number, prompt in enumerate(prompts)
        ]
        self._done.clear()
        return groups

    def close(self) -> None:
        """Stops the servers that the run owns."""
        if not self._is_driver:
            return
        self._transport.close()
        for server in self.pool.servers:
            self._run(server.client.close())
            if server.process is not None:
                server.process.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    # ------------------------------------------------------------------ servers

    def _given(self) -> list[Server]:
        key = os.environ.get("MEGATRON_SSPO_SERVER_KEY", "")
        return [Server(Client(url, key), None) for url in self._options.urls]

    def _own(self, python: Path, model_path: Path) -> list[Server]:
        num_gpus, count = torch.cuda.device_count(), self._options.num_servers
        found = []
        for number in range(count):
            share = [str(gpu) for gpu in range(number * num_gpus // count, (number + 1) * num_gpus // count)]
            process = ServerProcess(
                python,
                model_path,
                self._options.server if num_gpus else {**_ON_CPU, **self._options.server},
                {"CUDA_VISIBLE_DEVICES": ",".join(share)} if num_gpus else _CPU_ENVIRONMENT,
                self._options.log_folder / f"server-{number}.log",
            )
            found.append(Server(Client("", ""), process))
        return found

    # ------------------------------------------------------------------ requests

    async def _generate_all(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> None:
        """Adds what is missing to `_done`, as far as there are servers."""
        free = asyncio.Semaphore(self._options.max_in_flight)

        async def one(number: int, index: int) -> None:
            async with free:
                rollout = await self._response(number, prompts[number], sampling)
            if rollout is not None:
                self._done[number, index] = rollout

        watch = asyncio.create_task(self.pool.watch())
        wanted = [(number, index) for number in range(len(prompts)) for index in range(group_size)]
        tasks = [asyncio.create_task(one(*place)) for place in wanted if place not in self._done]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in [watch, *tasks]:
                task.cancel()
            await asyncio.gather(watch, *tasks, return_exceptions=True)

    async def _response(self, number: int, prompt: Prompt, sampling: Sampling) -> Rollout | None:
        """One response; None where no server is left that has the weights."""
        content = self._request(prompt, sampling)
        pause, failures = _FIRST_PAUSE, 0
        while ready := self.pool.ready(self._policy_version):
            # the responses to one prompt go to one server, which then computes the prompt once
            server = ready[(number + failures) % len(ready)]
            try:
                return self._rollout(await self._ask(server, content))
            except ServerError as error:
                if error.is_final:
                    raise UserError(f"the response to prompt {prompt.id} failed: {error}") from error
                await self.pool.suspect(server, str(error))
                if server.is_up:
                    failures += 1
                    if failures == _MOST_FAILURES:
                        raise UserError(f"no server answers prompt {prompt.id}; the last failure: {error}") from error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    async def _ask(self, server: Server, content: Mapping[str, Any]) -> dict[str, Any]:
        """A server's answer. A server that is taken out meanwhile is not waited for."""
        gone = asyncio.create_task(server.gone.wait())
        answer = asyncio.create_task(server.client.post("/generate", content, seconds=self._options.request_seconds))
        try:
            await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise ServerError(f"{server.client.url} was taken out")
        finally:
            gone.cancel()
            answer.cancel()

    def _request(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        return {
            "input_ids": list(prompt.tokens),
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_new_tokens": min(sampling.max_tokens, self._max_positions - len(prompt.tokens)),
                "stop": list(sampling.stop) or None,
                "stop_token_ids": sorted(self._end_tokens),
                "no_stop_trim": True,
                "skip_special_tokens": True,
            },
            "return_logprob": True,
            "return_routed_experts": self._options.routes,
        }

    def _rollout(self, answer: Mapping[str, Any]) -> Rollout:
        assert self._policy_version is not None
        try:
            meta = answer["meta_info"]
            tokens = tuple(int(token) for token in answer["output_ids"])
            log_probs = tuple(float(value) for value, *_ in meta["output_token_logprobs"])
            kind = meta["finish_reason"]["type"]
            if tuple(token for _, token, *_ in meta["output_token_logprobs"]) != tokens:
                raise ValueError("tokens and log-probs do not belong together")
            routes = self._routes(meta) if self._options.routes else None
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(f"a server answered what is no response ({error!r}): {str(answer)[:300]}") from error
        if kind not in ("stop", "length"):
            raise ServerError(f"a server ended a response by {meta['finish_reason']}")
        reason: FinishReason = kind
        return Rollout(
            tokens=tokens,
            rollout_log_probs=log_probs,
            text=str(self._tokenizer.decode(list(tokens), skip_special_tokens=True)),
            finish_reason=reason,
            policy_version=self._policy_version,
            routes=routes,
        )

    def _routes(self, meta: Mapping[str, Any]) -> str:
        """The experts of every token but the last, which none has been computed for."""
        chosen = torch.frombuffer(bytearray(base64.b64decode(meta["routed_experts"])), dtype=torch.int32)
        return pack_routes(chosen, self._num_experts)

    def _run(self, work: Coroutine[Any, Any, T], *, mend: bool = False) -> T:
        """Runs a coroutine in the engine's thread, and waits for it.

        With `mend`, servers that fail meanwhile are started again. They are started in this thread, which lives as long
        as the engine: the kernel ends a server together with the thread that started it.
        """
        future = self._submit(work)
        try:
            while not concurrent.futures.wait([future], timeout=_MEND_SECONDS).done:
                if mend:
                    self._restart_failed()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _restart_failed(self) -> None:
        for failed in self.pool.restart_failed():
            self._submit(failed.close())


_TRANSPORTS: dict[str, Callable[[_Options, Path], Transport]] = {
    "tensor": lambda options, _: TensorTransport(bucket_bytes=options.bucket_bytes, tp_size=options.tp_size),
    "disk": lambda options, model_path: DiskTransport(options.log_folder, model_path),
    "distributed": lambda options, _: DistributedTransport(bucket_bytes=options.bucket_bytes, tp_size=options.tp_size),
}

# What a server on a CPU needs to be told: how much memory is its cache's, and not to burn a core while it waits.
_ON_CPU = {"device": "cpu", "max_total_tokens": 20_000, "dtype": "float32", "sleep_on_idle": True}
_CPU_ENVIRONMENT = {"SGLANG_CPU_OMP_THREADS_BIND": "0", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
