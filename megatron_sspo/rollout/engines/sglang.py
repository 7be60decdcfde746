"""SGLang servers as a rollout engine: HTTP requests with token ids return token ids and log-probs."""

import asyncio
import concurrent.futures
import contextlib
import gc
import inspect
import os
import secrets
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.rollout.engine import Episodes, Generation, RolloutEngine
from megatron_sspo.rollout.requests.format import RequestFormat
from megatron_sspo.rollout.requests.generation import Requests
from megatron_sspo.rollout.requests.groups import ServedGeneration
from megatron_sspo.rollout.servers import server_program
from megatron_sspo.rollout.servers.build import build_router, build_servers, server_dtype
from megatron_sspo.rollout.servers.client import Client
from megatron_sspo.rollout.servers.options import Options, check, check_gpus
from megatron_sspo.rollout.servers.pool import Server, ServerPool
from megatron_sspo.rollout.servers.process import find_python
from megatron_sspo.rollout.servers.router import Router, RouterEnded
from megatron_sspo.rollout.tasks import cancel_all_others
from megatron_sspo.rollout.weight_sync import adapter
from megatron_sspo.rollout.weight_sync.checksums import Checksums
from megatron_sspo.rollout.weight_sync.delta import DeltaTransport
from megatron_sspo.rollout.weight_sync.disk import DiskTransport
from megatron_sspo.rollout.weight_sync.distributed import DistributedTransport
from megatron_sspo.rollout.weight_sync.ipc import IpcTransport
from megatron_sspo.rollout.weight_sync.session import SyncSession, Transport
from megatron_sspo.rollout.weight_sync.tensor import TensorTransport
from megatron_sspo.types import Prompt, Sampling
from megatron_sspo.weights.fp8 import quantization_config, quantized_names, trained_config, trained_rows
from megatron_sspo.weights.quantized_plan import quantized

_RESTART_POLL_SECONDS = 0.5  # between two restarts of failed servers
T = TypeVar("T")


def engine(model_path: Path, **options: Any) -> RolloutEngine:
    """Builds an engine that owns servers on this machine, or uses external ones: see `Options`.

    Raises:
        UserError: an option is invalid, SGLang is not installed, or a server does not start.
    """
    chosen = Options(**options)
    check(chosen)
    check_gpus(chosen)
    is_driver = agree.is_main()
    python = find_python(chosen.python) if is_driver and (chosen.router is not None or not chosen.urls) else None
    return SGLangEngine(Path(model_path), chosen, python, is_driver)


def check_values(**options: Any) -> None:
    """Raises UserError if an option of `engine` is invalid on any machine."""
    check(Options(**options))


engine.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
    [inspect.Parameter("model_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    + [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Options).parameters.values()]
)


class SGLangEngine:
    """An engine of SGLang servers. Rank 0 drives them; the other ranks only take part in collectives.

    `rollout_log_probs` are of the distribution after temperature and before top-p. A seed does not reproduce a
    response, because the servers batch requests as they arrive.

    A server that fails is removed, and its requests are sent to the others. A server that the run owns is restarted; it
    serves again after the next sync. If no other server is left, `NeedsWeights` requests that sync.
    """

    replicated = False

    def __init__(self, model_path: Path, options: Options, python: Path | None, is_driver: bool) -> None:
        self._options = options
        self._is_driver = is_driver
        self._quantized = quantized_names(trained_rows(model_path)) if options.quantize else set[str]()
        self._transport = _build_transport(options, model_path)
        if options.release_memory:
            _hand_over_to_servers()  # a server that starts measures how much memory is free
        if not is_driver:
            return
        self.key = os.environ.get(server_program.KEY, "") if options.urls else secrets.token_urlsafe(32)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sglang", daemon=True)
        self._thread.start()
        self._generations: list[ServedGeneration] = []
        self._watch: concurrent.futures.Future[None] | None = None
        self._router: Router | None = None
        self._num_syncs = 0
        self._name = secrets.token_hex(8)  # in the names of this engine's weight versions
        self._config = trained_config(model_path)
        self._released: set[Client] = set()
        self._metrics: dict[str, float] = {}
        servers = [Server(Client(url, self.key)) for url in options.urls]
        if not servers:
            assert python is not None
            servers = build_servers(options, model_path, python, self.key)
        self.pool = ServerPool(
            servers,
            key=self.key,
            min_servers=options.fewest_servers,
            max_restarts=options.max_restarts,
            health_seconds=options.health_seconds,
        )
        try:
            if options.router is not None:
                assert python is not None
                self._router = Router(build_router(options, python, self.key), self.key, options.max_restarts)
            self.pool.start()
            self._run(self.pool.await_all())
            if self._router is not None:  # which is not restarted if it cannot start
                self._run(self._router.set_servers(self.pool.urls))
                self.pool.router = self._router
            form = RequestFormat(model_path, run=self._name, routes=options.routes)
            self._requests = Requests(self.pool, form, self._router, options)
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
        environment: Episodes | None = None,
    ) -> Generation:
        """Begins the responses. Raises UserError if a prompt leaves no room for one, or the template no second turn."""
        assert self.pool.version is not None, "call load_weights before start"
        for prompt in prompts:
            self._requests.format.model.check(prompt)
        generation = ServedGeneration(
            self._requests,
            prompts,
            sampling,
            group_size,
            runner=self._requests.runner(environment),
            submit=self._submit,
            restart_failed=self._restart_failed,
            await_any=lambda: self._run(self.pool.await_any(), restart_failed=True),
        )
        self._generations = [*(g for g in self._generations if not g.is_done), generation]
        if self._watch is None:
            self._watch = self._submit(self.pool.watch())
        return generation

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Sends a stream of tensors, with the names and shapes of a checkpoint on disk, to every server that is up.

        Given a policy's weights, the ranks gather them as the transport needs them.

        Responses in progress pause, and continue with the new weights as `Options.pause` says. A server that fails is
        removed. If its failure leaves others with a part of the weights, those serve no requests, and `NeedsWeights`
        requests another sync.

        Raises:
            UserError: the servers reject the weights, hold other weights than were sent, or too few servers are left.
        """
        if self._options.release_memory:
            _hand_over_to_servers()
        if self._quantized:
            tensors = quantized(tensors, self._quantized)
        if not self._is_driver:
            self._transport.participate(tensors)
            return
        self.pool.version = None
        self._run(self.pool.check(generate_token=False))  # a server that hangs is detected by the requests of the sync
        self._restart_failed()
        self._run(self.pool.await_any(), restart_failed=True)
        started = time.perf_counter()
        session = self._new_session()
        has_adapter = self._options.lora == "adapter" and getattr(tensors, "adapter", None) is not None
        self._requests.format.adapter = adapter.NAME if has_adapter else ""
        self._send_weights(session, tensors, self._requests.format.version_name(policy_version))
        errors = list(session.failures.values())
        if not session.servers and errors and all(error.is_rejected for error in errors):
            raise UserError(f"the rollout servers reject the weights: {errors[0]}")
        self._run(self._record_session(session, policy_version))
        self._register_servers()
        self.pool.version = policy_version
        self._num_syncs += bool(session.servers)
        seconds = time.perf_counter() - started
        self._metrics |= {
            "sync/seconds": seconds,
            "sync/gigabytes": session.num_bytes / 1e9,
            "sync/gigabytes_per_second": session.num_bytes / 1e9 / seconds,
        }

    def release_memory(self) -> None:
        """Makes the servers release their GPU memory, if the option is set and no generation is in progress.

        A collective: no rank takes memory for training before the servers have released theirs.
        """
        if not self._options.release_memory:
            return
        if self._is_driver and not self._is_busy:
            self._release()
        agree.barrier()

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the last sync, and how long the servers were idle."""
        if not self._is_driver:
            return {}
        found, self._metrics = self._metrics, {}
        return {**found, "rollout/seconds_idle": self._run(self._requests.idle_seconds())}

    def close(self) -> None:
        """Stops the servers that the run owns, and resumes external ones. A second call does nothing."""
        if self._options.release_memory:
            _give_back_cached_memory()
        if not self._is_driver:
            self._transport.close()
            return
        if not self._thread.is_alive():
            return
        self._run(cancel_all_others())
        others = {server: server.client for server in self.pool.up() if server.process is None}
        session = SyncSession(others, self._submit)
        self._resume_memory(session)
        self._transport.close(session)
        if self._router is not None:
            self._run(self._router.close())
        for server in self.pool.servers:
            self._run(server.client.close())
            if server.process is not None:
                server.process.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    # ------------------------------------------------------------------ weights

    def _send_weights(self, session: SyncSession, tensors: Iterable[tuple[str, torch.Tensor]], version: str) -> None:
        options, is_busy = self._options, self._is_busy
        self._resume_memory(session)
        if is_busy:
            session.post("/pause_generation", {"mode": options.pause})
        # a base that is sent once is compared whenever it is sent; syncs of all weights are not the only ones compared
        number = self._num_syncs - bool(options.delta and self._num_syncs)
        is_due = options.lora == "adapter" or number % (options.verify_every or 1) == 0
        verify = options.verify_every and is_due
        checksums = Checksums(self._config, tp_size=options.tp_size, dtype=server_dtype(options)) if verify else None
        self._transport.send(session, tensors, version, None if checksums is None else checksums.observe)
        if not (is_busy and options.pause == "in_place"):
            session.flush(has_retracted=is_busy and options.pause == "retract")
        if checksums is not None:
            checksums.compare(session)
        if is_busy:
            session.post("/continue_generation", {})

    def _release(self) -> None:
        self.pool.version = None
        if self._watch is not None:  # its health checks would generate tokens
            self._watch.cancel()
            self._watch = None
        session = self._new_session()
        session.post("/pause_generation", {"mode": "abort"})  # returns when no request is in progress
        session.flush(has_retracted=False)  # waits for the scheduler, which asserts that it has finished its last batch
        session.post("/release_memory_occupation", {})
        self._run(self._record_session(session, None))
        self._released = set(session.servers.values())

    def _resume_memory(self, session: SyncSession) -> None:
        """Resumes only servers that released their memory: SGLang crashes on a request to resume memory that it has."""
        released = [key for key, client in session.servers.items() if client in self._released]
        session.post("/resume_memory_occupation", {}, to=released)
        session.post("/continue_generation", {}, to=released)
        self._released = set()

    def _new_session(self) -> SyncSession:
        return SyncSession({server: server.client for server in self.pool.up()}, self._submit)

    async def _record_session(self, session: SyncSession, version: int | None) -> None:
        """Records the result of a session: failed servers are removed, the others hold `version`."""
        for server, error in session.failures.items():
            self.pool.remove(server, str(error))
        for server in self.pool.up():  # one that came up after the session began holds no weights
            server.version = version if server in session.servers else None

    @property
    def _is_busy(self) -> bool:
        return any(not generation.is_done for generation in self._generations)

    # ------------------------------------------------------------------ the engine's thread

    def _run(self, work: Coroutine[Any, Any, T], *, restart_failed: bool = False) -> T:
        """Runs a coroutine in the engine's thread, and waits for it.

        With `restart_failed`, servers that fail meanwhile are restarted. They are started from this thread, which lives
        as long as the engine, because the kernel kills a server together with the thread that started it.
        """
        future = self._submit(work)
        try:
            while not concurrent.futures.wait([future], timeout=_RESTART_POLL_SECONDS).done:
                self._loop.call_soon_threadsafe(mark_progress)  # the coroutine has a timeout, if its thread runs
                if restart_failed:
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
        if self._router is not None and self._router.restart():
            self._register_servers()

    def _register_servers(self) -> None:
        """Registers the servers that hold the weights with the router, which is restarted if it has ended meanwhile."""
        while self._router is not None:
            self._router.restart()
            with contextlib.suppress(RouterEnded):
                self._run(self._router.set_servers(self.pool.urls))
                return


def _give_back_cached_memory() -> None:
    """Returns this process's unused GPU memory to the driver; torch would keep it from servers on the same GPU."""
    if torch.cuda.is_available():
        gc.collect()  # tensors in reference cycles
        torch.cuda.empty_cache()


def _hand_over_to_servers() -> None:
    """Gives back every rank's unused GPU memory; no rank returns before all have. A collective."""
    _give_back_cached_memory()
    agree.barrier()


def _build_transport(options: Options, model_path: Path) -> Transport:
    sizes = {"bucket_bytes": options.bucket_bytes, "tp_size": options.tp_size}
    if options.transport == "ipc":
        transport: Transport = IpcTransport(bucket_bytes=options.bucket_bytes)
    elif options.transport == "tensor":
        transport = TensorTransport(**sizes)
    elif options.transport == "distributed":
        transport = DistributedTransport(**sizes, address=options.address)
    else:
        also = {"quantization_config": quantization_config(trained_rows(model_path))} if options.quantize else None
        transport = DiskTransport((options.run_folder or Path("runs")) / "servers", model_path, also)
    if options.delta:
        transport = DeltaTransport(transport, every=options.delta, **sizes)
    if options.lora == "adapter":
        adapter.check_model(options.adapters, trained_config(model_path))
        transport = adapter.AdapterTransport(transport, tp_size=options.tp_size)
    return transport
