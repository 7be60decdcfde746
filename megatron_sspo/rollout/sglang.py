"""SGLang servers as a rollout engine: token ids go out over HTTP, token ids and log-probs come back."""

import asyncio
import concurrent.futures
import inspect
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.distributed as dist

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.ports import free_port
from megatron_sspo.rollout import serve
from megatron_sspo.rollout.engine import Generation, RolloutEngine, Sampling
from megatron_sspo.rollout.router import Router
from megatron_sspo.rollout.server_pool import Server, ServerPool
from megatron_sspo.rollout.servers import ServerProcess, find_python
from megatron_sspo.rollout.sglang_client import Client
from megatron_sspo.rollout.sglang_format import Format
from megatron_sspo.rollout.sglang_generation import Requests, ServedGeneration
from megatron_sspo.types import Prompt
from megatron_sspo.weights.companions import read_json
from megatron_sspo.weights.sync.checksums import Checksums
from megatron_sspo.weights.sync.disk import DiskTransport
from megatron_sspo.weights.sync.distributed import DistributedTransport
from megatron_sspo.weights.sync.ipc import IpcTransport
from megatron_sspo.weights.sync.session import Session, Transport
from megatron_sspo.weights.sync.tensor import TensorTransport

Pause = Literal["retract", "abort", "in_place"]
_MEND_SECONDS = 0.5  # between two looks for servers to start again
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `rollouts.options` may hold for this engine."""

    num_servers: int = 1  # to start on this machine, where no urls are given; each gets its share of the GPUs
    python: str | None = None  # the interpreter of SGLang's environment; None: that of `make install-sglang`
    server: Mapping[str, Any] | None = None  # options of SGLang's server by their own names: {"tp_size": 2}
    address: str = "127.0.0.1"  # of this machine, as its servers and those at `urls` reach it
    urls: Sequence[str] = ()  # servers that are there already; their key is in MEGATRON_SSPO_SERVER_KEY
    router: Mapping[str, Any] | None = None  # starts sglang-router before the servers, with these options: {}
    run_folder: Path | None = None  # the servers' output goes to `servers/` in there; the loop sets it
    routes: bool = False  # servers report each token's experts; the loop sets it where R3 wants them
    pause: Pause = "retract"  # what becomes of responses under way when weights are replaced
    release_memory: bool = False  # give the servers' memory back while the trainer works on the same GPUs
    max_in_flight: int = 1024  # responses that are asked for at once, over all servers
    request_seconds: float = 600.0  # for one response; one that takes longer is asked for again elsewhere
    health_seconds: float = 60.0  # within which a server has to generate a token; else it is taken out
    fewest_servers: int = 1  # with fewer the run ends
    max_restarts: int = 5  # of each server that the run owns
    transport: Literal["tensor", "ipc", "disk", "distributed"] = "tensor"  # how weights go to the servers
    bucket_bytes: int = 256 * 1024**2  # of weights in one request or broadcast
    verify_every: int = 10  # compare checksums after the first sync and every k-th; 0 never does

    @property
    def tp_size(self) -> int:
        """Tensor-parallel ranks of a server."""
        return int((self.server or {}).get("tp_size", 1))


def engine(model_path: Path, **options: Any) -> RolloutEngine:
    """An engine that owns servers on this machine, or uses given ones.

    Args:
        model_path: config.json and tokenizer.
        options: see `Options`.

    Raises:
        UserError: an option has no meaning, SGLang is not there, or a server does not start.
    """
    chosen = Options(**options)
    _check(chosen)
    is_driver = not dist.is_initialized() or dist.get_rank() == 0
    python = find_python(chosen.python) if is_driver and (chosen.router is not None or not chosen.urls) else None
    return SGLangEngine(Path(model_path), chosen, python, is_driver)


engine.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
    [inspect.Parameter("model_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    + [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Options).parameters.values()]
)


def _check(options: Options) -> None:
    """Raises UserError where an option has no meaning."""
    what = "rollouts.options"
    choices = {"transport": tuple(_TRANSPORTS), "pause": get_args(Pause)}
    for name, known in choices.items():
        if getattr(options, name) not in known:
            raise UserError(f"{what}.{name} is {getattr(options, name)!r}: it is one of {', '.join(known)}")
    for name in ("num_servers", "max_in_flight", "fewest_servers", "bucket_bytes"):
        if getattr(options, name) < 1:
            raise UserError(f"{what}.{name} is {getattr(options, name)}: it has to be 1 or more")
    for url in options.urls:
        if not re.fullmatch(r"https?://[^/\s]+/?", url):
            raise UserError(f"{what}.urls holds {url!r}: a server is named like http://10.0.0.1:30000")
    if options.transport == "ipc" and (options.urls or not torch.cuda.is_available()):
        raise UserError(
            f'{what}.transport is "ipc", which is for servers that the run starts on its own GPUs: choose "tensor"'
        )
    count = len(options.urls) or options.num_servers
    if options.fewest_servers > count:
        raise UserError(f"{what}.fewest_servers is {options.fewest_servers}, and there are {count} servers")
    if options.pause == "in_place" and not options.urls and not (options.server or {}).get("disable_radix_cache"):
        raise UserError(
            f'{what}.pause is "in_place", which keeps what servers remember of prompts under older weights, and hands '
            f'it to later responses: set {what}.server={{"disable_radix_cache": true}} too, or choose "retract"'
        )


class SGLangEngine:
    """Rank 0 drives the servers; on the other ranks it takes part in what is collective and does nothing else.

    `rollout_log_probs` are of the distribution after temperature, and before top-p. A seed does not repeat a response:
    the servers batch requests as they come.

    A server that fails is taken out, and its requests are made to the others. One that the run owns is started again;
    it serves from the next sync on, or, where no other is left, from one that `NeedsWeights` asks for.
    """

    replicated = False

    def __init__(self, model_path: Path, options: Options, python: Path | None, is_driver: bool) -> None:
        self._options = options
        self._is_driver = is_driver
        self._transport = _TRANSPORTS[options.transport](options, model_path)
        if not is_driver:
            return
        self.key = os.environ.get(serve.KEY, "") if options.urls else secrets.token_urlsafe(32)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sglang", daemon=True)
        self._thread.start()
        self._under_way: list[ServedGeneration] = []
        self._watch: concurrent.futures.Future[None] | None = None
        self._router: Router | None = None
        self._num_syncs = 0
        self._config = read_json(model_path / "config.json")
        self._resting: set[Client] = set()
        self._metrics: dict[str, float] = {}
        self.pool = ServerPool(
            [Server(Client(url, self.key)) for url in options.urls]
            or own_servers(options, model_path, python, self.key),
            key=self.key,
            fewest=options.fewest_servers,
            max_restarts=options.max_restarts,
            health_seconds=options.health_seconds,
        )
        try:
            self._start(python)
            self._requests = self._run(self._make_requests(Format(model_path, routes=options.routes)))
        except BaseException:
            self.close()
            raise

    def start(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        environment: Environment | None = None,
    ) -> Generation:
        """Begins `group_size` responses to each prompt, at once.

        Raises:
            UserError: no weights were loaded, a prompt leaves no room for a response, or there is an environment and
                the chat template has no second turn.
        """
        if self.pool.version is None:
            raise UserError("the servers have no weights: call load_weights before start")
        for prompt in prompts:
            self._requests.format.check(prompt)
        generation = ServedGeneration(
            self._requests,
            prompts,
            sampling,
            group_size,
            episodes=None if environment is None else self._requests.episodes(environment),
            submit=self._submit,
            mend=self._restart_failed,
            await_any=lambda: self._run(self.pool.await_any(), mend=True),
        )
        self._under_way = [*(g for g in self._under_way if not g.is_done), generation]
        if self._watch is None:
            self._watch = self._submit(self.pool.watch())
        return generation

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Sends a stream of tensors, named and shaped as in a checkpoint on disk, to every server that is up.

        Responses under way wait meanwhile, and go on under the new weights as `Options.pause` says. A server that fails
        is taken out.

        Raises:
            UserError: the servers refuse the weights, hold others than were sent, or too few are left.
        """
        if not self._is_driver:
            self._transport.follow(tensors)
            return
        started = time.perf_counter()
        self.pool.version = None
        self._run(self.pool.check(ask=False))  # one that is frozen shows when it is sent something
        self._restart_failed()
        self._run(self.pool.await_any(), mend=True)
        session = self._session()
        self._send(session, tensors, policy_version)
        errors = list(session.failures.values())
        if not session.servers and errors and all(error.is_final for error in errors):
            raise UserError(f"the rollout servers refuse the weights: {errors[0]}")
        self._take_out_failed(session)
        for server in self.pool.up():
            server.version = policy_version
        if self._router is not None:
            self._run(self._router.set_servers(server.client.url for server in self.pool.up()))
        self.pool.version = policy_version
        self._num_syncs += 1
        seconds = time.perf_counter() - started
        self._metrics |= {
            "sync/seconds": seconds,
            "sync/gigabytes": session.num_bytes / 1e9,
            "sync/gigabytes_per_second": session.num_bytes / 1e9 / seconds,
        }

    def rest(self) -> None:
        """Has the servers give back their memory, where that was asked for and nothing is under way."""
        if not self._is_driver or not self._options.release_memory or self._is_busy:
            return
        self.pool.version = None
        if self._watch is not None:  # it asks for tokens
            self._watch.cancel()
            self._watch = None
        session = self._session()
        session.post("/pause_generation", {"mode": "abort"})  # answers when nothing is under way
        session.post("/release_memory_occupation", {})
        self._take_out_failed(session)
        self._resting = set(session.servers.values())

    def metrics(self) -> dict[str, float]:
        """Of the last sync, and for how long the servers had nothing to do."""
        if not self._is_driver:
            return {}
        found, self._metrics = self._metrics, {}
        return {**found, "rollout/seconds_idle": self._run(self._requests.idle())}

    def close(self) -> None:
        """Stops the servers that the run owns. A second call does nothing."""
        if not self._is_driver or not self._thread.is_alive():
            return
        self._run(_end_all_tasks())
        self._transport.close()
        if self._router is not None:
            self._run(self._router.close())
        for server in self.pool.servers:
            self._run(server.client.close())
            if server.process is not None:
                server.process.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    # ------------------------------------------------------------------ servers

    @property
    def _dtype(self) -> torch.dtype | None:
        """That the servers were told to keep weights in; None: that of the model."""
        default = "auto" if torch.cuda.is_available() else _ON_CPU["dtype"]
        return _DTYPES.get((self._options.server or {}).get("dtype", default))

    def _start(self, python: Path | None) -> None:
        options = self._options
        if options.router is not None:
            assert python is not None
            arguments = {"prometheus_host": "127.0.0.1", "prometheus_port": free_port(), **options.router}
            module = "sglang_router.launch_router"
            process = _process(options, python, module, arguments, _CPU_ENVIRONMENT, "router", self.key)
            self._router = Router(process, self.key)
        for server in self.pool.servers:
            if server.process is not None:
                server.process.start()
                server.client = Client(server.process.url, self.key)
        self._run(self.pool.await_all())
        failures = [server.failure for server in self.pool.servers if server.failure]
        if failures:
            raise UserError(f"a rollout server did not start: {failures[0]}")
        if self._router is not None:
            self._run(self._router.set_servers([]))

    async def _make_requests(self, format: Format) -> Requests:
        front = None if self._router is None else self._router.client
        options = self._options
        return Requests(self.pool, format, front, max_in_flight=options.max_in_flight, seconds=options.request_seconds)

    # ------------------------------------------------------------------ weights

    def _send(self, session: Session, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        options, is_busy = self._options, self._is_busy
        if self._resting:
            resting = {key: client for key, client in session.servers.items() if client in self._resting}
            session.post("/resume_memory_occupation", {}, to=resting)
            session.post("/continue_generation", {}, to=resting)
            self._resting = set()
        if is_busy:
            session.post("/pause_generation", {"mode": options.pause})
        verify = options.verify_every and self._num_syncs % options.verify_every == 0
        checksums = Checksums(self._config, tp_size=options.tp_size, dtype=self._dtype) if verify else None
        stream = tensors if checksums is None else checksums.read(tensors)
        self._transport.send(session, stream, version, flush=not (is_busy and options.pause == "in_place"))
        if checksums is not None:
            checksums.compare(session)
        if is_busy:
            session.post("/continue_generation", {})

    def _session(self) -> Session:
        return Session({server: server.client for server in self.pool.up()}, self._submit)

    def _take_out_failed(self, session: Session) -> None:
        for server, error in session.failures.items():
            self.pool.take_out(server, str(error))

    @property
    def _is_busy(self) -> bool:
        return any(not generation.is_done for generation in self._under_way)

    # ------------------------------------------------------------------ the engine's thread

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


async def _end_all_tasks() -> None:
    """Of this thread's loop, but for this one."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def own_servers(
    options: Options, model_path: Path, python: Path | None, key: str, first_port: int | None = None
) -> list[Server]:
    """Places for the servers that the options want on one machine, each with its share of the GPUs; none is started.

    Args:
        python: an interpreter that has SGLang.
        key: which they are to ask for.
        first_port: of the first, and the next for the next; None takes free ones.
    """
    assert python is not None
    num_gpus, count = torch.cuda.device_count(), options.num_servers
    arguments = {
        "model_path": str(model_path),
        "load_format": "dummy",  # weights come from the trainer
        **({"enable_return_routed_experts": True} if options.routes else {}),
        **({"enable_memory_saver": True} if options.release_memory else {}),
        **({} if num_gpus else _ON_CPU),
        **(options.server or {}),
    }
    found = []
    for number in range(count):
        share = range(number * num_gpus // count, (number + 1) * num_gpus // count)
        cores = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(options.tp_size))
        on_cpu = {**_CPU_ENVIRONMENT, "SGLANG_CPU_OMP_THREADS_BIND": cores}
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, share))} if num_gpus else on_cpu
        port = None if first_port is None else first_port + number
        module, name = "sglang.launch_server", f"server-{number}"
        process = _process(options, python, module, arguments, environment, name, key, port)
        gpus = [str(torch.cuda.get_device_properties(gpu).uuid) for gpu in share][: options.tp_size]
        found.append(Server(Client("", ""), process, tuple(gpus)))
    return found


def _process(
    options: Options,
    python: Path,
    module: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    name: str,
    key: str,
    port: int | None = None,
) -> ServerProcess:
    log = (options.run_folder or Path("runs")) / "servers" / f"{name}.log"
    return ServerProcess(python, module, arguments, environment, log=log, key=key, host=options.address, port=port)


_TRANSPORTS: dict[str, Callable[[Options, Path], Transport]] = {
    "ipc": lambda options, _: IpcTransport(bucket_bytes=options.bucket_bytes),
    "tensor": lambda options, _: TensorTransport(bucket_bytes=options.bucket_bytes, tp_size=options.tp_size),
    "disk": lambda options, model_path: DiskTransport((options.run_folder or Path("runs")) / "servers", model_path),
    "distributed": lambda options, _: DistributedTransport(
        bucket_bytes=options.bucket_bytes, tp_size=options.tp_size, address=options.address
    ),
}

_DTYPES = {
    **dict.fromkeys(("float32", "float"), torch.float32),
    **dict.fromkeys(("float16", "half"), torch.float16),
    "bfloat16": torch.bfloat16,
}

# What a server on a CPU needs to be told: how much memory is its cache's, and not to burn a core while it waits.
_ON_CPU = {"device": "cpu", "max_total_tokens": 20_000, "dtype": "float32", "sleep_on_idle": True}
_CPU_ENVIRONMENT = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
