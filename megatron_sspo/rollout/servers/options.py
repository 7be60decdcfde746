"""The fields of `rollouts.options` for the engine of SGLang's servers."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from megatron_sspo.config.kinds import Amount, Count, Positive
from megatron_sspo.errors import UserError
from megatron_sspo.processes import shared_gpus

Pause = Literal["retract", "abort", "in_place"]
DtypeName = Literal["", "float32", "bfloat16"]
TransportName = Literal["tensor", "ipc", "disk", "distributed"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The fields of `rollouts.options` for this engine."""

    num_servers: Count = 1  # servers to start on this machine if `urls` is empty; they share its GPUs equally
    python: str | None = None  # the interpreter of SGLang's environment; None: the one in .venv-sglang
    server: Mapping[str, Any] | None = None  # options of SGLang's server by their own names: {"tp_size": 2}
    address: str = "127.0.0.1"  # this machine's address, at which its own servers and the servers of `urls` reach it
    urls: Sequence[str] = ()  # servers that run already; their key is in MEGATRON_SSPO_SERVER_KEY
    router: Mapping[str, Any] | None = None  # options of sglang-router, which is started unless this is None; e.g. {}
    run_folder: Path | None = None  # the servers' logs go to its folder `servers/`; the loop sets it
    model_dtype: DtypeName = ""  # of the weights of servers that are started on GPUs; the loop sets it
    routes: bool = False  # servers report each token's experts; the loop sets it for R3
    pause: Pause = "retract"  # treatment of responses in progress while weights are replaced
    release_memory: bool = False  # release the servers' memory while the trainer works on the same GPUs
    max_in_flight: Count = 1024  # largest number of concurrent requests, over all servers
    request_seconds: Positive = 600.0  # timeout after which a server returns a partial response, to be continued
    tool_call_parser: str = ""  # the name of SGLang's parser of calls in answers to agents; "": Qwen's format
    reasoning_parser: str = ""  # the name of SGLang's parser of reasoning in answers; "": the text before </think>
    health_seconds: Positive = 60.0  # a server that does not generate a token within this time is removed
    fewest_servers: Count = 1  # the run ends if fewer servers are left
    max_restarts: Amount = 5  # restarts of each server that the run owns
    transport: TransportName = "tensor"  # how weights are sent to the servers
    bucket_bytes: Count = 256 * 1024**2  # bytes of weights in one request or broadcast
    verify_every: Amount = 10  # compare checksums after the first sync and every k-th; 0 never does

    @property
    def tp_size(self) -> int:
        """The number of tensor-parallel ranks of a server."""
        return (self.server or {}).get("tp_size", 1)


_TP_SIZE = ("tp", "tp-size", "tensor_parallel_size", "tensor-parallel-size")  # other spellings of tp_size
_SET_BY_THE_RUN = (
    "host",
    "port",
    "api_key",
    "admin_api_key",
    "preferred_sampling_params",
)  # of servers and of the router
_NO_IPC = (
    'rollouts.options.transport is "ipc", which needs servers that the run starts on its own GPUs: choose "tensor"'
)
_NO_NCCL = (
    'rollouts.options.transport is "distributed", and servers are on GPUs of the trainer, but NCCL takes one process '
    'for each GPU: choose "ipc" for servers that the run starts, and "tensor" for others, or set '
    "NCCL_MULTI_RANK_GPU_ENABLE=1 to try it on one GPU"
)


def check_gpus(options: Options) -> None:
    """Raises UserError if the options need GPUs and this machine has none, other GPUs than its own, or other memory."""
    on_gpu = torch.cuda.is_available()
    if options.transport == "ipc" and not on_gpu:
        raise UserError(_NO_IPC)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if options.transport == "ipc" and "expandable_segments:true" in os.environ.get(name, "").lower():
            raise UserError(
                f'rollouts.options.transport is "ipc", and {name} has expandable_segments:True, whose memory '
                'servers may not be able to open: leave that out, or choose "tensor"'
            )
    # servers of the run begin with the first GPU, which is that of rank 0, a sender
    on_own = options.release_memory or not options.urls
    if options.transport == "distributed" and on_gpu and on_own and not shared_gpus.are_meant():
        raise UserError(_NO_NCCL)


def check(options: Options) -> None:
    """Raises UserError if an option is invalid in a way that its annotation does not say, or contradicts another."""
    what = "rollouts.options"
    tp_size = options.tp_size
    if not isinstance(tp_size, int) or isinstance(tp_size, bool) or tp_size < 1:
        raise UserError(f"{what}.server.tp_size is {tp_size!r}: it must be a whole number of 1 or more")
    for name in ("server", "router"):
        for key in getattr(options, name) or {}:
            if not isinstance(key, str) or not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", key):
                raise UserError(f'{what}.{name} has {key!r}: write an option of SGLang as in {{"tp_size": 2}}')
            if key.replace("-", "_") in _SET_BY_THE_RUN:
                raise UserError(f"{what}.{name} has {key!r}, which the run sets itself: leave it out")
            if key in _TP_SIZE:
                raise UserError(f"{what}.{name} has {key!r}: call it tp_size")
    for url in options.urls:
        if not re.fullmatch(r"https?://[^/\s]+/?", url):
            raise UserError(f"{what}.urls holds {url!r}: write a server's URL as http://10.0.0.1:30000")
    urls = [url.rstrip("/").lower() for url in options.urls]
    if twice := [url for number, url in enumerate(urls) if url in urls[:number]]:
        raise UserError(f"{what}.urls holds {twice[0]} twice: name each server once")
    if options.transport == "ipc" and options.urls:
        raise UserError(_NO_IPC)
    count = len(options.urls) or options.num_servers
    if options.fewest_servers > count:
        raise UserError(
            f"{what}.fewest_servers is {options.fewest_servers}, and there are {count} servers: lower it, or add some"
        )
    if options.pause == "in_place" and not options.urls and not (options.server or {}).get("disable_radix_cache"):
        raise UserError(
            f'{what}.pause is "in_place", which keeps the prefix cache of older weights and reuses it for '
            f'later responses: set {what}.server={{"disable_radix_cache": true}} too, or choose "retract"'
        )
