"""Checks that a machine has the resources of a run: memory, disk, servers that answer."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from megatron_sspo.checkpoint.state import bytes_left, list_checkpoints
from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.memory.estimate import checkpoint_bytes, estimate, host_memory, model_bytes
from megatron_sspo.run import Run
from megatron_sspo.weights.formats.hf_folder import hub_snapshot
from megatron_sspo.weights.formats.open_folder import config_file

if TYPE_CHECKING:
    from megatron_sspo.rollout.servers.client import Client

_ANSWER_SECONDS = 10.0
_MORE_RANKS = "raise parallel.tensor, parallel.pipeline or, for experts, parallel.expert"
_FEWER_TOKENS = "lower tokens_per_microbatch, or raise parallel.tensor or parallel.context"
# fields of the estimate of a rank's memory: in words, and how to make each smaller
_PARTS = {
    "weights": ("weights", _MORE_RANKS),
    "gradients": ("gradients", _MORE_RANKS),
    "optimizer": (
        "the optimizer's state",
        "raise parallel.data, over which it is spread, or move it into the host's memory: --set optimizer.offload=1",
    ),
    "activations": ("activations", _FEWER_TOKENS),
    "layer": ("one layer's activations", _FEWER_TOKENS),
    "logits": ("logits", _FEWER_TOKENS),
    "engine": (
        "the engine within the trainer",
        "lower rollouts.options.max_batch_size, or let servers generate: rollouts.engine=sglang",
    ),
    "teacher": ("weights of the teacher", _MORE_RANKS),
    "allowance": ("left to CUDA and NCCL", _MORE_RANKS),
}
_RECOMPUTE = " ".join(
    f"--set megatron.recompute_{field}" for field in ("granularity=full", "method=uniform", "num_layers=1")
)


def read_model_config(run: Run) -> dict[str, Any]:
    """Returns the content of the model's config.json. Raises UserError if it is not there, or cannot be read."""
    folder = Path(run.model.path)
    if path := config_file(folder):
        return read_json(path)
    if snapshot := hub_snapshot(folder):
        raise UserError(f"{folder} is the hub's cache of a model: set model.path to its snapshot, {snapshot}")
    start = "" if folder.is_absolute() else f"; the path is relative to {Path.cwd()}"
    raise UserError(f"{folder} has no config.json: set model.path to a Hugging Face folder{start}")


def memory_of_rank(num_sharing: int) -> tuple[int, str]:
    """Returns this rank's memory in bytes and its name: an equal part of the GPU, or without CUDA of the host's memory.

    `num_sharing` is the number of ranks that have this GPU, or without CUDA this host.
    """
    share = "its share of " if num_sharing > 1 else ""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return properties.total_memory // num_sharing, f"{share}the {properties.name}"
    return psutil.virtual_memory().total // num_sharing, f"{share}the memory"


def check_memory(run: Run, config: Mapping[str, Any], available: int, what: str, *, on_cuda: bool) -> None:
    """Checks that no rank is estimated to need more than `available` bytes, unless `run.check_memory` is False.

    Raises UserError if one does; the message names the largest part and how to make it smaller.
    """
    if not run.check_memory:
        return
    worst = max(estimate(run, config, on_cuda=on_cuda), key=lambda stage: stage.total)
    if worst.total <= available:
        return
    largest = max(vars(worst), key=lambda name: getattr(worst, name))
    words, remedy = _PARTS[largest]
    if largest == "activations" and run.megatron.get("recompute_granularity") != "full":
        remedy = _RECOMPUTE
    raise UserError(
        f"a rank is estimated to need {worst.total / 1e9:.1f} GB, but {what} has {available / 1e9:.1f} GB; most of it, "
        f"{getattr(worst, largest) / 1e9:.1f} GB, is {words}: {remedy}; or --set check_memory=false to start anyway"
    )


def check_host_memory(run: Run, config: Mapping[str, Any], num_ranks: int, free: int, host: str) -> str:
    """Checks that a host has the memory that its ranks are estimated to need there, unless `run.check_memory` is False.

    Returns a line about what they leave of the `free` bytes. Raises UserError with the parts if they need more.
    """
    needed = host_memory(run, config)
    left = free - needed.of_host(num_ranks)
    if left < 0 and run.check_memory:
        offload = "lower optimizer.offload, " if needed.optimizer else ""
        raise UserError(
            f"{needed.describe(num_ranks)}, but {host} has {free / 1e9:.1f} GB free: {offload}use more nodes with a "
            "larger parallel.data, or ask Slurm for more by --mem; or --set check_memory=false to start anyway"
        )
    return f"{host} has {free / 1e9:.1f} GB of memory free, of which its ranks leave {left / 1e9:.1f} GB"


def check_disk(run: Run, config: Mapping[str, Any], folder: Path) -> None:
    """Checks that a run's folder can be made and written, and that its disk has space for checkpoints and the model.

    A checkpoint is written before the oldest of `checkpoints_kept` is removed. A resumed run has its own already.
    Raises UserError.
    """
    place = folder.absolute()
    while not place.exists() and not place.is_symlink():
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
            f"{place} has {free / 1e9:.1f} GB free, and {what} and the finished model take "
            f"{needed / 1e9:.1f} GB: make room, {keep}or choose another disk with --set output=..."
        )


def num_checkpoints(run: Run) -> int:
    """Returns how many checkpoints a run saves if nothing interrupts it."""
    if not run.checkpoint_every:
        return 1
    return -(-run.num_updates // run.checkpoint_every) + (run.warm_start is not None)


def check_servers(urls: Sequence[str], tp_size: int = 1, *, delta: bool = False) -> None:
    """Checks that all rollout servers that the recipe names answer, and can take the weights that will be sent.

    With `delta`, changed elements will be sent, for which a server needs a loader. Raises UserError if a server does
    not answer, has another number of ranks or no loader; the message names the first one.
    """
    if not urls:
        return
    from megatron_sspo.rollout.servers.client import Client, ServerError
    from megatron_sspo.rollout.servers.loaders import megatron_sspo_delta
    from megatron_sspo.rollout.servers.server_program import KEY

    try:
        found = asyncio.run(_server_infos([Client(url, os.environ.get(KEY, "")) for url in urls]))
    except ServerError as error:
        raise UserError(
            f"a rollout server does not answer: {error}; start it, or fix rollouts.options.urls or {KEY}"
        ) from error
    for url, info in zip(urls, found, strict=True):
        if (other := info.get("tp_size", 1)) != tp_size:
            raise UserError(
                f"the rollout server {url} has tp_size {other}, and weights would be sent to {tp_size} of its ranks: "
                f"set rollouts.options.server.tp_size to {other}, or start the server with another tp_size"
            )
        if delta and megatron_sspo_delta.NAME not in (info.get("custom_weight_loader") or ()):
            raise UserError(
                f"the rollout server {url} has no loader for rollouts.options.delta: start it with "
                f"--custom-weight-loader {megatron_sspo_delta.NAME} and PYTHONPATH="
                f"{Path(megatron_sspo_delta.__file__).parent}, or set delta=0"
            )


async def _server_infos(clients: "Sequence[Client]") -> list[dict[str, Any]]:
    """Returns the options of each server."""

    async def probe(client: "Client") -> dict[str, Any]:
        try:
            await client.get("/get_model_info", seconds=_ANSWER_SECONDS)
            return await client.get("/server_info", seconds=_ANSWER_SECONDS)
        finally:
            await client.close()

    return await asyncio.gather(*map(probe, clients))
