"""SGLang servers as a rollout engine: token ids go out over HTTP, token ids and log-probs come back."""

import asyncio
import base64
import os
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoTokenizer

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import RolloutEngine, Sampling
from megatron_sspo.rollout.servers import ServerProcess, find_python
from megatron_sspo.rollout.sglang_client import Client, ServerError
from megatron_sspo.rollout.stopping import end_tokens
from megatron_sspo.routes import pack_routes
from megatron_sspo.types import FinishReason, Prompt, Rollout, RolloutGroup
from megatron_sspo.weights.sync import TensorTransport

_START_SECONDS = 900.0  # a large model's server compiles and captures graphs for minutes
_POLL_SECONDS = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
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
        bucket_bytes: of weights that go out in one request.

    Raises:
        UserError: SGLang is not there, or a server does not start.
    """
    options = _Options(
        num_servers=num_servers,
        server={**({"enable_return_routed_experts": True} if routes else {}), **(server or {})},
        routes=routes,
        urls=tuple(urls),
        log_folder=(run_folder or Path("runs")) / "servers",
        max_in_flight=max_in_flight,
        request_seconds=request_seconds,
        bucket_bytes=bucket_bytes,
    )
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
    bucket_bytes: int


class SGLangEngine:
    """Rank 0 drives the servers; on the other ranks it takes part in what is collective and does nothing else.

    `rollout_log_probs` are of the distribution after temperature, and before top-p. A seed does not repeat a response:
    the servers batch requests as they come.
    """

    replicated = False

    def __init__(self, model_path: Path, options: _Options, python: Path | None, is_driver: bool) -> None:
        self._options = options
        self._policy_version: int | None = None
        self._processes: list[ServerProcess] = []
        self._clients: list[Client] = []
        self._is_driver = is_driver
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
        try:
            if python is None:
                key = os.environ.get("MEGATRON_SSPO_SERVER_KEY", "")
                self._clients = [Client(url, key) for url in options.urls]
            else:
                self._start(python, model_path)
            self._await_start()
        except BaseException:
            self.close()
            raise

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Sends a stream of tensors, named and shaped as in a checkpoint on disk, to every server.

        Raises:
            UserError: a server does not take them. The engine then has no weights.
        """
        self._policy_version = None
        if not self._is_driver:
            for _ in tensors:
                pass
        else:
            try:
                TensorTransport(self._clients, self._run, bucket_bytes=self._options.bucket_bytes).send(
                    tensors, policy_version
                )
            except ServerError as error:
                raise UserError(f"the weights did not reach a rollout server: {error}") from error
        self._policy_version = policy_version

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, group_size: int, seed: int
    ) -> list[RolloutGroup]:
        """`group_size` responses to each prompt, in the prompts' order.

        Raises:
            UserError: no weights were loaded, a prompt leaves no room for a response, or the servers are gone.
        """
        if self._policy_version is None:
            raise UserError("the servers have no weights: call load_weights before generate")
        for prompt in prompts:
            if not 0 < len(prompt.tokens) < self._max_positions:
                raise UserError(
                    f"prompt {prompt.id} has {len(prompt.tokens)} tokens and the model {self._max_positions} "
                    "positions: drop or shorten it"
                )
        rollouts = self._run(self._generate_all(prompts, sampling, group_size))
        return [
            RolloutGroup(prompt=prompt, rollouts=rollouts[number * group_size : (number + 1) * group_size])
            for number, prompt in enumerate(prompts)
        ]

    def close(self) -> None:
        """Stops the servers that the run owns."""
        if not self._is_driver:
            return
        for client in self._clients:
            self._run(client.close())
        for process in self._processes:
            process.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    # ------------------------------------------------------------------ servers

    def _start(self, python: Path, model_path: Path) -> None:
        num_gpus, count = torch.cuda.device_count(), self._options.num_servers
        for number in range(count):
            share = [str(gpu) for gpu in range(number * num_gpus // count, (number + 1) * num_gpus // count)]
            on_gpu = {"CUDA_VISIBLE_DEVICES": ",".join(share)}
            process = ServerProcess(
                python,
                model_path,
                self._options.server if num_gpus else {**_ON_CPU, **self._options.server},
                on_gpu if num_gpus else _CPU_ENVIRONMENT,
                self._options.log_folder / f"server-{number}.log",
            )
            process.start()
            self._processes.append(process)
            self._clients.append(Client(process.url, process.key))

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        waiting = list(self._clients)
        while waiting:
            for process in self._processes:
                if how := process.ended():
                    raise UserError(f"a rollout server did not start: {how}")
            waiting = [client for client in waiting if not self._run(client.is_healthy(seconds=5.0))]
            if waiting and time.monotonic() > deadline:
                raise UserError(
                    f"the rollout server {waiting[0].url} did not answer within {_START_SECONDS:.0f} s of its start"
                )
            time.sleep(_POLL_SECONDS if waiting else 0)

    # ------------------------------------------------------------------ requests

    async def _generate_all(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> list[Rollout]:
        free = asyncio.Semaphore(self._options.max_in_flight)

        async def one(number: int, prompt: Prompt) -> Rollout:
            async with free:
                return await self._response(number, prompt, sampling)

        # the responses to one prompt go to one server, which then computes the prompt once
        tasks = [one(number, prompt) for number, prompt in enumerate(prompts) for _ in range(group_size)]
        return list(await asyncio.gather(*tasks))

    async def _response(self, number: int, prompt: Prompt, sampling: Sampling) -> Rollout:
        content = {
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
        pause = _FIRST_PAUSE
        failures: list[str] = []
        while True:
            client = self._clients[(number + len(failures)) % len(self._clients)]
            try:
                return self._rollout(await client.post("/generate", content, seconds=self._options.request_seconds))
            except ServerError as error:
                if error.is_final:
                    raise UserError(f"the response to prompt {prompt.id} failed: {error}") from error
                failures.append(str(error))
            for process in self._processes:
                if how := process.ended():
                    raise UserError(f"a rollout server is gone: {how}")
            if len(failures) >= 8:
                raise UserError(f"no server answers prompt {prompt.id}; the last failure: {failures[-1]}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _rollout(self, answer: Mapping[str, Any]) -> Rollout:
        assert self._policy_version is not None
        try:
            meta = answer["meta_info"]
            tokens = tuple(int(token) for token in answer["output_ids"])
            log_probs = tuple(float(value) for value, *_ in meta["output_token_logprobs"])
            kind = meta["finish_reason"]["type"]
            if len(tokens) != len(log_probs) or tuple(t for _, t, *_ in meta["output_token_logprobs"]) != tokens:
                raise ValueError("tokens and log-probs do not belong together")
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
            routes=self._routes(meta) if self._options.routes else None,
        )

    def _routes(self, meta: Mapping[str, Any]) -> str:
        """The experts of every token but the last, which none has been computed for."""
        chosen = torch.frombuffer(bytearray(base64.b64decode(meta["routed_experts"])), dtype=torch.int32)
        return pack_routes(chosen, self._num_experts)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the engine's thread, and waits for it; Ctrl-C ends the wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


# What a server on a CPU needs to be told: how much memory is its cache's, and that nothing is to be captured.
_ON_CPU = {"device": "cpu", "max_total_tokens": 20_000, "dtype": "float32"}
_CPU_ENVIRONMENT = {"SGLANG_CPU_OMP_THREADS_BIND": "0", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
