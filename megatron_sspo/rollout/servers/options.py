"""The fields of `rollouts.options` for the engine of SGLang's servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from megatron_sspo.config.kinds import Amount, Count, Positive
from megatron_sspo.errors import UserError
from megatron_sspo.processes import shared_gpus
from megatron_sspo.run import LoRA

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
    quantize: Literal["", "fp8"] = ""  # "fp8" sends linear layers in FP8, to servers that are started for it
    bucket_bytes: Count = 256 * 1024**2  # bytes of weights in one request or broadcast
    lora: Literal["merged", "adapter"] = "merged"  # what is sent of a run with adapters: docs/lora.md
    adapters: LoRA | None = None  # of servers that are started for lora="adapter"; the loop sets it
    delta: Amount = 0  # send changed elements alone, and all weights every k-th sync; 0: all weights always
    verify_every: Amount = 10  # compare checksums after the first sync and every k-th; 0 never does

    @property
    def tp_size(self) -> int:
        """The number of tensor-parallel ranks of a server."""
        return (self.server or {}).get("tp_size", 1)


_REFUSED = {  # options of servers and of the router
    **dict.fromkeys(("host", "port", "api_key", "admin_api_key"), "leave it out, because the run sets it itself"),
    "preferred_sampling_params": "leave it out, because it would change the sampling",
    **dict.fromkeys(("tp", "tensor_parallel_size"), "call it tp_size"),
}
_NO_IPC = (
    'rollouts.options.transport is "ipc", which needs servers that the run starts on its own GPUs: choose "tensor"'
)


def check_gpus(options: Options) -> None:
    """Raises UserError if the transport does not work on this machine."""
    on_gpu = torch.cuda.is_available()
    if options.transport == "ipc" and not on_gpu:
        raise UserError(_NO_IPC)
    # servers of the run begin with the first GPU, which is that of rank 0, a sender
    on_own = options.release_memory or not options.urls
    if options.transport == "distributed" and on_gpu and on_own and not shared_gpus.are_meant():
        raise UserError(
            'rollouts.options.transport is "distributed", and servers are on GPUs of the trainer, but NCCL takes one '
            'process for each GPU: choose "ipc" for servers that the run starts, and "tensor" for others, or set '
            "NCCL_MULTI_RANK_GPU_ENABLE=1 to try it on one GPU"
        )


def check(options: Options) -> None:
    """Raises UserError if an option contradicts another, or would be taken for something else."""
    what = "rollouts.options"
    for name, given in (("server", options.server or {}), ("router", options.router or {})):
        for key in given:
            if remedy := _REFUSED.get(key.replace("-", "_")):
                raise UserError(f"{what}.{name} has {key!r}: {remedy}")
    if options.quantize and "json_model_override_args" in (options.server or {}):
        raise UserError(
            f"{what}.quantize is {options.quantize!r}, by which the run sets the quantization of its servers: leave "
            f"json_model_override_args out of {what}.server"
        )
    if options.transport == "ipc" and options.urls:
        raise UserError(_NO_IPC)
    if options.delta and not options.verify_every:
        raise UserError(
            f"{what}.delta is {options.delta}, and verify_every=0 would not detect a server that stores weights in "
            "another layout, where changed elements go to wrong places: set verify_every, or delta=0"
        )
    if wrong := [url for url in options.urls if not url.startswith(("http://", "https://"))]:
        raise UserError(f"{what}.urls holds {wrong[0]!r}: write a server's URL as http://10.0.0.1:30000")
    if options.pause == "in_place" and not options.urls and not (options.server or {}).get("disable_radix_cache"):
        raise UserError(
            f'{what}.pause is "in_place", which keeps the prefix cache of older weights and reuses it for '
            f'later responses: set {what}.server={{"disable_radix_cache": true}} too, or choose "retract"'
        )
    if options.lora == "adapter" and options.pause != "abort":
        raise UserError(
            f'{what}.lora is "adapter", and pause is "{options.pause}", with which SGLang ends a response with the '
            f'adapter that it began with: set {what}.pause="abort" too, or choose "merged"'
        )
    if options.lora == "adapter" and (options.quantize or options.delta):
        raise UserError(
            f'{what}.lora is "adapter", which sends the base once and as it is: choose "merged", or leave out quantize '
            "and delta"
        )
