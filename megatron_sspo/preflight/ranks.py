"""Checks that need all ranks; they run after the process group is made and before anything is loaded."""

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
from torch.cuda import nccl

from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.preflight.free_memory import free_memory
from megatron_sspo.preflight.resources import check_host_memory, check_memory, memory_of_rank
from megatron_sspo.processes import agree
from megatron_sspo.run import Run
from megatron_sspo.run_folder.resuming import differences

_log = logging.getLogger(__name__)

_PACKAGES = (
    *("torch", "megatron-core", "transformers", "safetensors"),
    *("transformer-engine", "flash-attn", "flash-attn-3", "apex"),
)
_SEEN_SECONDS = 10.0  # the time after which a new file of a shared file system is visible on all nodes


def check_ranks(run: Run, config: Mapping[str, Any], folder: Path) -> None:
    """Checks that all ranks have the same software, configuration and folders, and enough memory.

    A collective: all ranks raise the same error, so that no rank waits for another. The run's folder is created.
    """
    host, on_cuda = socket.gethostname(), torch.cuda.is_available()
    gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if on_cuda else ""
    mine = {"host": host, "versions": versions(), "gpu": gpu, "run": config_to_json(run)}
    found = agree.all_gather_objects(mine)
    _check_alike(found)
    _check_paths(Path(run.model.path), folder)
    num_sharing = Counter(rank["gpu"] if on_cuda else rank["host"] for rank in found)[gpu if on_cuda else host]
    if on_cuda and num_sharing > 1 and agree.is_main():
        _log.warning("%d ranks share a GPU: that is slow, and for trials", num_sharing)
    available, what = memory_of_rank(num_sharing)
    free = free_memory()
    with agree.same_error_on_all_ranks():
        check_memory(run, config, available, f"{what} of {host}", on_cuda=on_cuda)
        check_host_memory(run, config, Counter(rank["host"] for rank in found)[host], free, host)


def check_same_prompts(streams: Mapping[str, PromptStream]) -> None:
    """Checks that all ranks have the same prompts and demonstrations, field by field. A collective."""
    found = agree.all_gather_objects({place: stream.digest() for place, stream in streams.items()})
    for rank, other in enumerate(found):
        if differing := [place for place in other if other[place] != found[0][place]]:
            raise UserError(
                f"{differing[0]} has other rows on rank {rank} than on rank 0: give both the same file, and let a "
                "source of your own depend neither on time nor on chance"
            )


def versions() -> dict[str, str]:
    """Returns the versions of Python, of NCCL and of the packages used, and a hash of this package's sources."""
    # that of the library which torch has loaded, which LD_PRELOAD may replace
    of_nccl = ".".join(map(str, nccl.version())) if torch.cuda.is_available() else "none"
    found = {"Python": platform.python_version(), "NCCL": of_nccl}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return {**found, "megatron_sspo": digest.hexdigest()[:12]}


def _check_alike(found: list[dict[str, Any]]) -> None:
    """Checks that all ranks have the same software and that the recipe has given them the same values."""
    first = found[0]
    for rank, other in enumerate(found):
        where = f"rank {rank} on {other['host']}"
        for name, expected in first["versions"].items():
            if other["versions"][name] != expected:
                raise UserError(
                    f"{where} has {name} {other['versions'][name]}, but rank 0 on {first['host']} has {expected}: "
                    "start all ranks from one environment and one checkout"
                )
        if lines := differences(first["run"], other["run"]):
            raise UserError(
                f"the recipe gives other values on {where} than on rank 0: "
                f"{lines[0].replace(', and was ', ' there, and here ')}: let it depend neither on time nor on chance"
            )


def _check_paths(model: Path, folder: Path) -> None:
    """Checks that all ranks see a file that rank 0 makes in the run's folder; a folder of that name is not enough."""

    def mark() -> str:
        with os_errors_as_user_errors():
            folder.mkdir(parents=True, exist_ok=True)
            marker.touch()
        return marker.name

    marker = folder / f".seen-{secrets.token_hex(8)}"
    try:
        seen = folder / agree.run_on_rank_0(mark)
        missing = [path.parent if path == seen else path for path in (seen, model) if not _is_seen(path)]
        for rank, paths in enumerate(agree.all_gather_objects(missing)):
            if paths:
                raise UserError(
                    f"rank {rank} does not see {paths[0]} of rank 0 on its host: use folders that all nodes share, "
                    "with absolute paths"
                )
    finally:
        marker.unlink(missing_ok=True)


def _is_seen(path: Path) -> bool:
    deadline = time.monotonic() + _SEEN_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
