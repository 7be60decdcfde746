"""Builds the server and router processes of a run on one machine. It does not start them."""

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.processes.cores import usable_cores
from megatron_sspo.processes.ports import free_port
from megatron_sspo.rollout.servers import server_program
from megatron_sspo.rollout.servers.client import Client
from megatron_sspo.rollout.servers.loaders import megatron_sspo_delta
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.rollout.servers.pool import Server
from megatron_sspo.rollout.servers.process import ServerProcess
from megatron_sspo.weights.fp8 import quantization_config, trained_config, trained_rows

_CPU_OPTIONS = {"device": "cpu", "max_total_tokens": 20_000, "sleep_on_idle": True}  # without busy waiting
_CPU_ENVIRONMENT = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}

# SGLang would wait a minute for GPU core dumps, even if they are not enabled.
_NO_CORE_DUMPS = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": os.environ.get("SGLANG_CUDA_COREDUMP", "0")}

# A server would refuse to start on GPUs whose free memory differs by more than a tenth, as beside ranks of the trainer.
# SGLang computes with the least free memory in any case.
_MEMORY_BALANCE = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"

_MODULES = {"attention": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}

_DTYPES = {name: getattr(torch, name) for name in ("float32", "float", "float16", "half", "bfloat16")}


def server_dtype(options: Options) -> torch.dtype | None:
    """Returns the dtype of the servers' weights; None if it is not known."""
    return _DTYPES.get((options.server or {}).get("dtype", _default_dtype(options)))


def _default_dtype(options: Options) -> str:
    """Returns the dtype of servers that a run starts; "" lets SGLang choose."""
    if options.quantize:  # SGLang computes with 16 bits beside FP8
        return "bfloat16"
    return options.model_dtype if torch.cuda.is_available() else "float32"


def has_grammars(options: Options) -> bool:
    """Returns whether the servers can sample under a grammar. On a CPU, xgrammar, SGLang's default, masks no logits."""
    backend = (options.server or {}).get("grammar_backend")
    return bool(options.urls) or torch.cuda.is_available() or backend == "llguidance"


def build_router(options: Options, python: Path, key: str) -> ServerProcess:
    """Returns a router without servers. It keeps its port when it is restarted, because requests are sent there."""
    arguments = {"prometheus_host": "127.0.0.1", "prometheus_port": free_port(), **(options.router or {})}
    place = {"log": _log(options, "router"), "key": key, "host": options.address, "port": free_port(options.address)}
    return ServerProcess(python, "sglang_router.launch_router", arguments, _CPU_ENVIRONMENT, **place)


def build_servers(
    options: Options, model_path: Path, python: Path, key: str, first_port: int | None = None
) -> list[Server]:
    """Returns the servers of one machine, not started, each with its share of the GPUs.

    They have `first_port` and the ports after it; None takes free ports.

    Raises:
        UserError: the servers need more GPUs than there are.
    """
    names, count = visible_gpus(), options.num_servers
    num_gpus, wanted = len(names), count * options.tp_size
    if num_gpus and wanted > num_gpus:
        raise UserError(
            f"rollouts.options asks for {count} servers of {options.tp_size} GPUs each, and {num_gpus} GPUs are "
            "visible here: lower num_servers or server.tp_size, or set CUDA_VISIBLE_DEVICES to more"
        )
    arguments = {
        "model_path": str(model_path),
        "load_format": "dummy",  # weights come from the trainer
        "disable_shared_experts_fusion": True,  # into the routed experts, on some GPUs, where no checksum is expected
        **({"enable_return_routed_experts": True} if options.routes else {}),
        **({"enable_memory_saver": True} if options.release_memory else {}),
        **_quantization(options, model_path),
        **({"custom_weight_loader": [megatron_sspo_delta.NAME]} if options.delta else {}),
        # SGLang would choose a dtype by config.json: float16 for float32, and not the trainer's in any case
        "dtype": _default_dtype(options) or None,
        **({} if num_gpus else _CPU_OPTIONS),
        **_adapter_arguments(options),
        **(options.server or {}),
    }
    found, cores, loaders = [], usable_cores(), str(Path(megatron_sspo_delta.__file__).parent)
    given = [path for path in [os.environ.get("PYTHONPATH")] if path]
    for number in range(count):
        share = range(number * num_gpus // count, (number + 1) * num_gpus // count)
        bound = "|".join(str(cores[(number * options.tp_size + rank) % len(cores)]) for rank in range(options.tp_size))
        on_cpu = {**_CPU_ENVIRONMENT, "SGLANG_CPU_OMP_THREADS_BIND": bound, server_program.FORK: "1"}
        environment = {
            **({"CUDA_VISIBLE_DEVICES": ",".join(names[gpu] for gpu in share)} if num_gpus else on_cpu),
            # SGLang's own timeout of a health check: after it, SGLang reports a failure even if the client still waits
            "SGLANG_HEALTH_CHECK_TIMEOUT": str(math.ceil(options.health_seconds) + 1),
            **_NO_CORE_DUMPS,
            **({"PYTHONPATH": os.pathsep.join([loaders, *given])} if options.delta else {}),
            _MEMORY_BALANCE: os.environ.get(_MEMORY_BALANCE, "0"),
            # where the trainer's ranks have hosts of their own for NCCL, servers on their GPUs need others
            **({"NCCL_HOSTID": f"{socket.gethostname()}-server-{number}"} if os.environ.get("NCCL_HOSTID") else {}),
        }
        port = None if first_port is None else first_port + number
        place = {"log": _log(options, f"server-{number}"), "key": key, "host": options.address, "port": port}
        process = ServerProcess(python, "sglang.launch_server", arguments, environment, **place)
        gpus = [str(torch.cuda.get_device_properties(gpu).uuid) for gpu in share][: options.tp_size]
        found.append(Server(Client("", ""), process, tuple(gpus)))
    return found


def _adapter_arguments(options: Options) -> dict[str, Any]:
    """Returns SGLang's options for the run's adapters, if it sends them."""
    if options.adapters is None or options.lora != "adapter":
        return {}
    modules = {name for target in options.adapters.targets for name in _MODULES[target]}
    return {
        "enable_lora": True,
        "max_lora_rank": options.adapters.rank,
        "lora_target_modules": sorted(modules),
        "max_loras_per_batch": 2,  # the policy's, and none for health checks
        "lora_strict_loading": True,
        **({} if torch.cuda.is_available() else {"lora_backend": "torch_native"}),
    }


def _quantization(options: Options, model_path: Path) -> dict[str, str]:
    """Returns the option by which a server takes weights as they are sent, whatever the model's folder has."""
    wanted = quantization_config(trained_rows(model_path)) if options.quantize else None
    if wanted is None and trained_config(model_path) == read_json(model_path / "config.json"):
        return {}
    return {"json_model_override_args": json.dumps({"quantization_config": wanted})}


def visible_gpus() -> list[str]:
    """Returns the visible GPUs as a child's CUDA_VISIBLE_DEVICES names them: by this process's names, or by index."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",")] if given else [str(gpu) for gpu in range(count)]
    return names[:count]


def _log(options: Options, name: str) -> Path:
    return (options.run_folder or Path("runs")) / "servers" / f"{name}.log"
