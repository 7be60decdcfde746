"""Sharded save and load of Megatron's state: model, optimizer, schedule, random states."""

import importlib.util
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.validation import StrictHandling
from torch.distributed.checkpoint.api import CheckpointException

from megatron_sspo.checkpoint.optimizer_state import add_moments, divide_weights, divided_state
from megatron_sspo.checkpoint.saving import AsyncSave, ResultQueue, describe_error, report_save_errors
from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.processes.surroundings import environment_with
from megatron_sspo.weights.formats.torch_dist import read_index

# by default, newer releases of Megatron-Core write with another package
_MCORE_WRITERS: dict[str, Any] = (
    {"async_strategy": "mcore"} if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters else {}
)

# unlike dp_reshardable it depends on no layout and not on DDP's buckets: docs/checkpoints.md
SHARDING_TYPE = "fully_reshardable"

_ADAPTER = ".lora_"  # in the names of an adapter's factors

# torch.load then refuses pickles that could run code, also where torch asks it to accept them, as for objects
_WITHOUT_CODE = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": None}


def check_requirements() -> None:
    """Checks that psutil is installed; called before a run starts.

    Raises:
        UserError: psutil is missing. megatron-core does not declare it as a requirement. Without it the process that
            writes a checkpoint dies, and the process that started it waits forever (0.16 to 0.19).
    """
    if importlib.util.find_spec("psutil") is None:
        raise UserError("psutil is not installed, and megatron-core hangs without it while saving: pip install psutil")


def begin_save(path: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any) -> AsyncSave:
    """Begins to write a `torch_dist` checkpoint into the existing, empty folder `path`. A collective.

    Separate processes write it, even if the trainer waits for them.

    Raises:
        UserError: the checkpoint cannot be written.
    """
    results = ResultQueue()
    with report_save_errors(path), _replace_results_queue(results):
        state = state_to_save(chunks, optimizer, scheduler)
        request: Any = dist_checkpointing.save(state, str(path), async_sharded_save=True, **_MCORE_WRITERS)
    return AsyncSave(request, results, path)


def state_to_save(chunks: Sequence[Any], optimizer: Any, scheduler: Any) -> dict[str, Any]:
    """Returns the state whose tensors say which parts of a checkpoint a rank writes. A collective."""
    return _state(chunks, optimizer, scheduler, is_loading=False)


@contextmanager
def _replace_results_queue(results: Any) -> Iterator[None]:
    """Replaces the `multiprocessing.Manager` through which Megatron-Core (0.16) passes the writer's results.

    That manager is a server process, which would survive a kill of this one.
    """
    if not hasattr(filesystem_async, "_results_queue"):
        raise RuntimeError("megatron-core has no filesystem_async._results_queue: update _replace_results_queue")
    filesystem_async._results_queue = results
    try:
        yield
    finally:
        filesystem_async._results_queue = None


def load(path: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any, *, seed: int) -> None:
    """Restores the whole state exactly, in the layout that wrote it, except for Adam's settings. A collective.

    Args:
        seed: the run's seed, for new random states where a GPU is to read those of a CPU, or a CPU those of a GPU.

    Raises:
        UserError: the folder is damaged, or was written by another model or layout.
    """
    state = read(path, state_to_load(chunks, optimizer, scheduler))
    load_chunks(path, chunks, state)
    adam = {name: optimizer.param_groups[0][name] for name in ("betas", "eps")}
    for group in param_groups(state["optimizer"]):  # this run's settings, which may differ from the saved ones
        group["max_lr"], group["min_lr"] = scheduler.max_lr, scheduler.min_lr  # newer releases match groups by them
        group.update(adam)
    optimizer.load_state_dict(state["optimizer"])
    load_schedule(scheduler, state["scheduler"])
    set_random_states(state["random"], seed, scheduler.num_steps)


def state_to_load(chunks: Sequence[Any], optimizer: Any, scheduler: Any) -> dict[str, Any]:
    """Returns the state of this layout, whose tensors say which parts of a checkpoint's tensors a rank reads."""
    return _state(chunks, optimizer, scheduler, is_loading=True)


def read(path: Path, state: dict[str, Any], *, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """Reads the checkpoint's parts of a state, and its objects that are not sharded. A collective.

    Args:
        ignored: keys of the checkpoint that the state may lack. Every other key has to be on both sides.

    Raises:
        UserError: the folder is damaged, has pickles that could run code, or was written by another model or layout.
    """
    agree.run_on_rank_0(lambda: _check_index(path))
    try:
        strict = StrictHandling.RETURN_ALL if ignored else StrictHandling.RAISE_ALL
        with environment_with(_WITHOUT_CODE):
            found: Any = dist_checkpointing.load(state, str(path), strict=strict)
        if not ignored:
            return found
        found, missing, unexpected = found
    except (Exception, CheckpointException) as error:  # there are many kinds; CheckpointException is a BaseException
        raise _unloadable(path, describe_error(error)) from error
    if different := sorted({*missing, *unexpected} - {*ignored}):
        raise _unloadable(path, f"{different[0]} is on one side only")
    return found


def _check_index(path: Path) -> None:
    """Checks the index, a pickle that torch reads without any restriction."""
    try:
        read_index(path)
    except UserError as error:
        raise _unloadable(path, str(error).partition(";")[0]) from error


def _unloadable(path: Path, why: str) -> UserError:
    return UserError(
        f"the checkpoint {path} cannot be loaded ({why}): it is damaged, or of another model or layout; resume from an "
        "older checkpoint of the same run"
    )


def load_chunks(path: Path, chunks: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Copies the model's tensors of a state that was read from `path` into the chunks.

    Raises:
        UserError: the state lacks a parameter, or has one too many.
    """
    for number, chunk in enumerate(chunks):
        _load_strictly(chunk, state[f"model{number}"], path)


def load_schedule(scheduler: Any, state: Mapping[str, Any]) -> None:
    """Sets the schedule to its saved step."""
    scheduler.num_steps = 0  # load_state_dict adds to it
    scheduler.load_state_dict(state)


def set_random_states(random: Mapping[str, Any], seed: int, num_steps: int) -> None:
    """Restores random states, or seeds them anew if they are of another kind of device, which cannot take them."""
    is_of_gpu = random["cuda"] is not None
    if is_of_gpu != torch.cuda.is_available():
        seed_random_states(seed, num_steps)
        return
    torch.set_rng_state(random["torch"])
    if is_of_gpu:
        torch.cuda.set_rng_state(random["cuda"])
    _rng_tracker().set_states(random["tracker"])


def seed_random_states(seed: int, num_steps: int) -> None:
    """Seeds the random states as a start does, by the run's seed and the number of updates."""
    seed = seed * 1_000_003 + num_steps
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def param_groups(state: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    """Yields the parameter groups of an optimizer's state, or of the states of a chain of optimizers."""
    for key, value in state.items():
        if key == "param_groups":
            yield from value
        elif isinstance(value, Mapping):
            yield from param_groups(value)


def _rng_tracker() -> Any:
    """Returns Megatron's named random states, with which tensor-parallel ranks draw equal or different numbers."""
    return tensor_parallel.get_cuda_rng_tracker()


def _unwrap(chunk: Any) -> Any:
    """Returns the model itself, without Megatron's wrappers, which add to its names and drop the result of loading."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def _saved(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a checkpoint has of a model's state: everything, or of a model with adapters these alone."""
    adapters = {name: value for name, value in state.items() if _ADAPTER in name}
    # Transformer Engine's FP8 scales, which bf16 and fp32 do not have
    return adapters or {name: value for name, value in state.items() if "_extra_state" not in name}


def _load_strictly(chunk: Any, state: dict[str, Any], path: Path) -> None:
    result = _unwrap(chunk).load_state_dict(state, strict=False)
    missing = _saved(dict.fromkeys([*result.missing_keys, *state])).keys() - state.keys()
    if missing or result.unexpected_keys:
        raise UserError(
            f"the checkpoint {path} does not fit the model: missing {sorted(missing)[:10]}, "
            f"unexpected {result.unexpected_keys[:10]}"
        )


def _state(chunks: Sequence[Any], optimizer: Any, scheduler: Any, *, is_loading: bool) -> dict[str, Any]:
    metadata = {
        "distrib_optim_sharding_type": SHARDING_TYPE,
        "chained_optim_avoid_prefix": True,
        "singleton_local_shards": False,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    state: dict[str, Any] = {
        f"model{number}": _saved(_unwrap(chunk).sharded_state_dict(metadata=metadata))
        for number, chunk in enumerate(chunks)
    }
    model = state["model0"] if len(chunks) == 1 else dict(state)
    if not is_loading:
        add_moments(optimizer)
    with divided_state(optimizer):
        state["optimizer"] = optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)
    if not is_loading:
        divide_weights(model, optimizer)
    state["scheduler"] = scheduler.state_dict()
    random = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "tracker": _rng_tracker().get_states(),
    }
    state["random"] = ShardedObject("random", random, (dist.get_world_size(),), (dist.get_rank(),), replica_id=0)
    return state
