"""Checks that a machine has the resources of a run: memory, disk, a port, servers that answer."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from megatron_sspo.checkpoint.state import bytes_left, list_checkpoints
from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.files.units import format_bytes
from megatron_sspo.memory.estimate import MemoryEstimate, checkpoint_bytes, estimate, host_bytes, model_bytes
from megatron_sspo.processes.ports import check_free
from megatron_sspo.rollout.servers.client import Client, ServerError
from megatron_sspo.rollout.servers.server_program import KEY
from megatron_sspo.run import Run
from megatron_sspo.weights.formats.hf_folder import hub_snapshot
from megatron_sspo.weights.formats.open_folder import config_file

_ANSWER_SECONDS = 10.0


def read_model_config(run: Run) -> dict[str, Any]:
    """Returns the content of the model's config.json.

    Raises:
        UserError: the file does not exist or cannot be read.
    """
    folder = Path(run.model.path)
    if path := config_file(folder):
        return read_json(path)
    if snapshot := hub_snapshot(folder):
        raise UserError(f"{folder} is the hub's cache of a model: set model.path to its snapshot, {snapshot}")
    start = "" if folder.is_absolute() else f"; the path is relative to {Path.cwd()}"
    raise UserError(f"{folder} has no config.json: set model.path to a Hugging Face folder{start}")


def memory_of_rank(num_sharing: int) -> tuple[int, str]:
    """Returns this rank's memory in bytes and its name: an equal part of the GPU, or without CUDA of the host's memory.

    Args:
        num_sharing: the number of ranks that have this GPU, or without CUDA this host.
    """
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return (
            properties.total_memory // num_sharing,
            f"{'its share of ' if num_sharing > 1 else ''}the {properties.name}",
        )
    return psutil.virtual_memory().total // num_sharing, "its share of the memory"


def check_memory(run: Run, config: Mapping[str, Any], available: int, what: str, *, on_cuda: bool) -> None:
    """Checks that no rank is estimated to need more than `available` bytes, unless `run.check_memory` is False.

    Raises:
        UserError: a rank needs more; the message names the largest part and how to make it smaller.
    """
    if not run.check_memory:
        return
    stages = estimate(run, config, on_cuda=on_cuda)
    worst = max(stages, key=lambda stage: stage.total)
    if worst.total <= available:
        return
    largest, remedy = _largest(run, worst)
    raise UserError(
        f"a rank is estimated to need {worst.total / 1e9:.1f} GB, but {what} has {available / 1e9:.1f} GB; most of it, "
        f"{getattr(worst, largest) / 1e9:.1f} GB, is {_WORDS[largest]}: {remedy}; or --set "
        "check_memory=false to start anyway"
    )


def check_host_memory(run: Run, config: Mapping[str, Any], available: int, num_local_ranks: int, host: str) -> None:
    """Checks that a node has the memory into which its ranks copy a checkpoint, unless `run.check_memory` is False.

    Args:
        available: bytes that the host has free.
        num_local_ranks: the number of ranks on it.

    Raises:
        UserError: the ranks are estimated to need more.
    """
    each = host_bytes(run, config)
    if not run.check_memory or num_local_ranks * each <= available:
        return
    raise UserError(
        f"to save a checkpoint, the {num_local_ranks} ranks on {host} are estimated to need {num_local_ranks} x "
        f"{each / 1e9:.1f} GB of its memory, and {available / 1e9:.1f} GB are free: raise parallel.data with more "
        "nodes, ask for more memory for the job (#SBATCH --mem), or --set check_memory=false to start anyway"
    )


def check_disk(run: Run, config: Mapping[str, Any], folder: Path) -> None:
    """Checks that a run's folder can be made and written, and that its disk has space for checkpoints and the model.

    A checkpoint is written before the oldest of `checkpoints_kept` is removed. A resumed run has its own already.

    Args:
        folder: the run's folder, which need not exist yet.

    Raises:
        UserError: the folder cannot be written, or the disk has less free space.
    """
    place = folder.absolute()
    while not place.exists():
        if place.is_symlink():
            raise UserError(
                f"cannot write into {folder}: {place} is a link to something that does not exist; repair it, or choose "
                "another place with --set output=..."
            )
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        why = "is not a folder" if not place.is_dir() else "cannot be written by this user"
        raise UserError(f"cannot write into {folder}: {place} {why}; choose another place with --set output=...")
    checkpoints = folder / "checkpoints"
    more = max(1, min(num_checkpoints(run), run.checkpoints_kept + 1) - len(list_checkpoints(checkpoints)))
    needed = more * checkpoint_bytes(run, config) + model_bytes(run, config)
    free = shutil.disk_usage(place).free + bytes_left(checkpoints)
    if free < needed:
        what = "a checkpoint" if more == 1 else f"{more} checkpoints at a time"
        keep = f"lower checkpoints_kept={run.checkpoints_kept}, " if more > 1 and run.checkpoints_kept > 1 else ""
        raise UserError(
            f"{place} has {format_bytes(free)} free, and {what} and the finished model take "
            f"{format_bytes(needed)}: make room, {keep}or choose another disk with --set output=..."
        )


def num_checkpoints(run: Run) -> int:
    """Returns how many checkpoints a run saves if nothing interrupts it."""
    if not run.checkpoint_every:
        return 1
    return -(-run.num_updates // run.checkpoint_every) + (run.warm_start is not None)


def check_port() -> None:
    """Checks that MASTER_PORT is free if this process will serve the rendezvous store there.

    Otherwise the other ranks would connect to an unrelated server and wait half an hour. Under torchrun this check is
    skipped, because torchrun itself listens on that port.

    Raises:
        UserError: the port is in use, or MASTER_PORT is not the number of a port.
    """
    port = os.environ.get("MASTER_PORT", "")
    if os.environ.get("RANK") != "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or not port:
        return
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise UserError(f"MASTER_PORT is {port!r}: it must be a number from 1 to 65,535")
    check_free("", int(port), "set MASTER_PORT to a free port, or submit a job of slurm/ again, whose number sets it")


def check_servers(urls: Sequence[str], tp_size: int = 1) -> None:
    """Checks that all rollout servers that the recipe names answer, and have as many ranks as weights are sent to.

    Args:
        tp_size: the number of tensor-parallel ranks of a server in the recipe.

    Raises:
        UserError: a server does not answer, or has another number of ranks; the message names the first such server.
    """
    if not urls:
        return
    clients = [Client(url, os.environ.get(KEY, "")) for url in urls]
    for url, found in zip(urls, asyncio.run(_probe_servers(clients)), strict=True):
        if isinstance(found, ServerError):
            raise UserError(
                f"a rollout server does not answer: {found}; start it, or fix rollouts.options.urls or {KEY}"
            )
        if found != tp_size:
            raise UserError(
                f"the rollout server {url} has tp_size {found}, and weights would be sent to {tp_size} of its ranks: "
                f"set rollouts.options.server.tp_size to {found}, or start the server with another tp_size"
            )


async def _probe_servers(clients: Sequence[Client]) -> list[int | ServerError]:
    """Returns the number of tensor-parallel ranks of each server, or the error if it does not answer."""

    async def probe(client: Client) -> int | ServerError:
        try:
            await client.get("/get_model_info", seconds=_ANSWER_SECONDS)
            info = await client.get("/server_info", seconds=_ANSWER_SECONDS)
            if not isinstance(found := info.get("tp_size", 1), int):
                return ServerError(f"{client.url}/server_info answered with the tp_size {found!r}")
            return found
        except ServerError as error:
            return error
        finally:
            await client.close()

    return await asyncio.gather(*map(probe, clients))


_WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "the optimizer's state",
    "activations": "activations",
    "layer": "one layer's activations",
    "logits": "logits",
    "engine": "the engine within the trainer",
    "allowance": "left to CUDA and NCCL",
}


def _largest(run: Run, estimated: MemoryEstimate) -> tuple[str, str]:
    """Returns the name of the estimate's largest field, and how to make it smaller."""
    largest = max(vars(estimated), key=lambda name: getattr(estimated, name))
    more_ranks = "raise parallel.tensor, parallel.pipeline or, for experts, parallel.expert"
    if largest == "activations" and run.megatron.get("recompute_granularity") != "full":
        fields = ("granularity=full", "method=uniform", "num_layers=1")
        return largest, " ".join(f"--set megatron.recompute_{field}" for field in fields)
    remedies = {
        "weights": more_ranks,
        "gradients": more_ranks,
        "optimizer": "raise parallel.data, over which it is spread",
        "engine": "lower rollouts.options.max_batch_size, or let servers generate: rollouts.engine=sglang",
    }
    return largest, remedies.get(largest, "lower tokens_per_microbatch, or raise parallel.tensor or parallel.context")
