"""Checks that need all ranks; they run after the process group is made and before anything is loaded."""

import contextlib
import hashlib
import logging
import platform
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.cuda import nccl

from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.preflight.free_memory import free_memory
from megatron_sspo.preflight.resources import check_host_memory, check_memory, memory_of_rank
from megatron_sspo.processes import agree, shared_gpus
from megatron_sspo.run import Run
from megatron_sspo.run_folder.resuming import differences

_log = logging.getLogger(__name__)

_PACKAGES = (
    *("torch", "megatron-core", "transformers", "safetensors"),
    *("transformer-engine", "flash-attn", "flash-attn-3", "apex"),
)
_SEEN_SECONDS = 10.0  # the time after which a new file of a shared file system is visible on all nodes


def check_ranks(run: Run, config: Mapping[str, Any], folder: Path) -> None:
    """Checks that all ranks have the same software, configuration and folders, GPUs of their own, and enough memory.

    A collective: all ranks raise the same error, so that no rank waits for another.

    Args:
        config: the content of the model's config.json.
        folder: the run's folder; it is created if missing, and removed again if the check of the folders fails.

    Raises:
        UserError: the first check that fails.
    """
    mine = {"host": socket.gethostname(), "versions": versions(), "gpu": _gpu(), "run": config_to_json(run)}
    place = shared_gpus.place_of(dist.get_rank() if dist.is_initialized() else 0)
    found = agree.all_gather_objects({**mine, "place": place})
    hosts = [rank["host"] for rank in found]
    _compare([rank["versions"] for rank in found], hosts)
    _compare_runs([rank["run"] for rank in found], hosts)
    gpus = [rank["gpu"] for rank in found]
    _check_own_gpus(gpus, [rank["place"] for rank in found], hosts)
    _check_paths(run, folder, hosts)
    host, on_cuda = socket.gethostname(), torch.cuda.is_available()
    num_local_ranks = Counter(hosts)[host]
    num_sharing = gpus.count(mine["gpu"]) if on_cuda else num_local_ranks
    if on_cuda and num_sharing > 1 and agree.is_main():
        _log.warning("%d ranks share a GPU, as the variables of NCCL say: that is slow, and for trials", num_sharing)
    available, what = memory_of_rank(num_sharing)
    with agree.same_error_on_all_ranks():
        check_memory(run, config, available, f"{what} of {host}", on_cuda=on_cuda)
        if on_cuda:  # without GPUs, all that a rank holds is in the same memory
            check_host_memory(run, config, free_memory(), num_local_ranks, host)


def check_same_prompts(streams: Mapping[str, PromptStream]) -> None:
    """Checks that all ranks have the same prompts and demonstrations. A collective: all ranks raise the same error.

    Args:
        streams: the run's streams of prompts, by the fields that describe them.

    Raises:
        UserError: a rank has others; the message names the field.
    """
    contents = {place: stream.digest() for place, stream in streams.items()}
    found = agree.all_gather_objects((socket.gethostname(), contents))
    host, expected = found[0]
    for rank, (other, content) in enumerate(found):
        if differing := [place for place in expected if content[place] != expected[place]]:
            raise UserError(
                f"{differing[0]} has other rows on rank {rank} on {other} than on rank 0 on {host}: give both the "
                "same file, and let a source of your own depend neither on time nor on chance"
            )


def versions() -> dict[str, str]:
    """Returns the versions of Python, of NCCL and of the packages used, and a hash of this package's sources."""
    found = {"Python": platform.python_version(), "NCCL": _nccl_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return {**found, "megatron_sspo": digest.hexdigest()[:12]}


def _nccl_version() -> str:
    """Returns the version of the NCCL library that torch has loaded, which LD_PRELOAD may replace; "none" on CPUs."""
    if not torch.cuda.is_available():
        return "none"
    return ".".join(map(str, nccl.version()))


def _compare(found: list[dict[str, str]], hosts: list[str]) -> None:
    for name, expected in found[0].items():
        for rank, others in enumerate(found):
            if others[name] != expected:
                raise UserError(
                    f"rank {rank} on {hosts[rank]} has {name} {others[name]}, but rank 0 on {hosts[0]} has {expected}: "
                    "start all ranks from one environment and one checkout"
                )


def _compare_runs(found: list[dict[str, Any]], hosts: list[str]) -> None:
    """Checks that a recipe has given the same values on all ranks, where its code may have run once for each."""
    for rank, run in enumerate(found):
        if lines := differences(found[0], run):
            raise UserError(
                f"the recipe gives other values on rank {rank} on {hosts[rank]} than on rank 0 on {hosts[0]}: "
                f"{lines[0].replace(', and was ', ' there, and here ')}: let it depend neither on time nor on chance"
            )


def _gpu() -> str:
    """Returns the id of this rank's GPU; "" without CUDA."""
    if not torch.cuda.is_available():
        return ""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def _check_own_gpus(gpus: list[str], places: list[str], hosts: list[str]) -> None:
    """Checks that NCCL accepts the ranks on each GPU; it would refuse them later, in the first collective.

    Args:
        places: `shared_gpus.place_of` of each rank.
    """
    owners: dict[tuple[str, str], int] = {}
    for rank, (gpu, place) in enumerate(zip(gpus, places, strict=True)):
        if gpu and (owner := owners.setdefault((gpu, place), rank)) != rank:
            raise UserError(
                f"ranks {owner} and {rank} on {hosts[rank]} are on the same GPU, {gpu}: start one process per GPU, and "
                "set LOCAL_RANK or CUDA_VISIBLE_DEVICES for each, or NCCL_MULTI_RANK_GPU_ENABLE=1 (without "
                "NCCL_HOSTID) to try several on one"
            )


def _check_paths(run: Run, folder: Path, hosts: list[str]) -> None:
    """Checks that all ranks see a file that rank 0 makes in the run's folder; a folder of that name is not enough."""
    is_main = agree.is_main()
    made = is_main and not folder.exists()
    marker = folder / f".seen-{secrets.token_hex(8)}"
    try:
        message = ""
        if is_main:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                marker.touch()
            except OSError as error:
                message = f"cannot write into {folder} ({error.strerror}): choose another place with --set output=..."
        name, message = agree.broadcast_from_rank_0((marker.name, message))
        if message:
            raise UserError(message)
        missing = [str(path) for path in (folder / name, Path(run.model.path)) if not _is_seen(path)]
        for rank, paths in enumerate(agree.all_gather_objects(missing)):
            if paths:
                path = str(folder) if paths[0].endswith(name) else paths[0]
                raise UserError(
                    f"rank {rank} on {hosts[rank]} does not see {path} of rank 0 on {hosts[0]}: use folders that all "
                    "nodes share, with absolute paths"
                )
    except UserError:
        if made:
            marker.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder is not empty any more
                folder.rmdir()
        raise
    finally:
        marker.unlink(missing_ok=True)


def _is_seen(path: Path) -> bool:
    deadline = time.monotonic() + _SEEN_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
