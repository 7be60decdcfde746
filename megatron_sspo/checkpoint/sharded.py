"""Sharded save and load of Megatron's state: model, optimizer, schedule, random states."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.validation import StrictHandling
from torch.distributed.checkpoint.api import CheckpointException

from megatron_sspo.checkpoint.optimizer_state import divide_weights, divided_state, is_copied
from megatron_sspo.checkpoint.saving import AsyncSave, describe_error, report_save_errors
from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.processes.surroundings import environment_with
from megatron_sspo.weights.formats.torch_dist import read_index

# by default, newer releases of Megatron-Core write with another package
_MCORE_WRITERS: dict[str, Any] = (
    {"async_strategy": "mcore"} if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters else {}
)

Reference = Sequence[Mapping[str, torch.Tensor]]
"""The reference's weights of each chunk by their names there; none if it does not move."""

# unlike dp_reshardable it depends on no layout and not on DDP's buckets: docs/checkpoints.md
SHARDING_TYPE = "fully_reshardable"

_ADAPTER = ".lora_"  # in the names of an adapter's factors

# torch.load then refuses pickles that could run code, also where torch asks it to accept them, as for objects
_WITHOUT_CODE = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": None}


def begin_save(
    path: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any, reference: Reference = ()
) -> AsyncSave:
    """Begins to write a `torch_dist` checkpoint into the existing, empty folder `path`. A collective.

    A thread writes it, even if the trainer waits for it.

    Raises:
        UserError: the checkpoint cannot be written.
    """
    # in place of the queue of a server process, which would survive a kill of this one
    filesystem_async._results_queue = SimpleQueue()
    with report_save_errors(path):
        state = state_to_save(chunks, optimizer, scheduler, reference)
        request: Any = dist_checkpointing.save(state, str(path), async_sharded_save=True, **_MCORE_WRITERS)
    return AsyncSave(request, path, partial(is_copied, optimizer))


def state_to_save(chunks: Sequence[Any], optimizer: Any, scheduler: Any, reference: Reference = ()) -> dict[str, Any]:
    """Returns the state whose tensors say which parts of a checkpoint a rank writes. A collective."""
    return _state(chunks, optimizer, scheduler, reference, is_loading=False)


def load(
    path: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any, reference: Reference = (), *, seed: int
) -> None:
    """Restores the whole state exactly, in the layout that wrote it, except for Adam's settings. A collective.

    Args:
        seed: the run's seed, for new random states where a GPU is to read those of a CPU, or a CPU those of a GPU.

    Raises:
        UserError: the folder is damaged, or was written by another model or layout.
    """
    state = read(path, state_to_load(chunks, optimizer, scheduler, reference))
    load_chunks(chunks, state)
    load_reference(reference, state)
    adam = {name: optimizer.param_groups[0][name] for name in ("betas", "eps")}
    for group in param_groups(state["optimizer"]):  # this run's settings, which may differ from the saved ones
        group["max_lr"], group["min_lr"] = scheduler.max_lr, scheduler.min_lr  # newer releases match groups by them
        group.update(adam)
    optimizer.load_state_dict(state["optimizer"])
    load_schedule(scheduler, state["scheduler"])
    set_random_states(state["random"], seed, scheduler.num_steps)


def load_resharded(
    path: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any, reference: Reference = (), *, seed: int
) -> None:
    """Restores model, optimizer and schedule in any layout, and seeds the random states anew. A collective.

    Each rank reads its parts of the whole tensors, which `fully_reshardable` (docs/checkpoints.md) writes for the
    optimizer too. Parameter groups are made by this layout, because whether experts have an optimizer of their own
    depends on it, and only their step count is the checkpoint's.

    Args:
        seed: the run's seed, which gives the new random states: see `seed_random_states`.

    Raises:
        UserError: the folder is damaged, or was written by another model.
    """
    state = state_to_load(chunks, optimizer, scheduler, reference)
    del state["random"]  # a state per rank of the other layout
    state["resharded"] = state.pop("optimizer")  # beside the checkpoint's groups, which Megatron would merge into it
    loaded = read(path, state, ignored=("random",))
    load_chunks(chunks, loaded)
    load_reference(reference, loaded)
    optimizer.load_state_dict(_optimizer_state(optimizer.state_dict(), loaded["resharded"], loaded["optimizer"]))
    load_schedule(scheduler, loaded["scheduler"])
    seed_random_states(seed, scheduler.num_steps)


def _optimizer_state(own: Any, resharded: Mapping[Any, Any], saved: Mapping[Any, Any]) -> Any:
    """Returns the state to load: this layout's groups with the saved step count, and the resharded tensors."""
    kept = [{"step": group["step"]} for group in param_groups(saved) if "step" in group][-1:]
    of_chain = isinstance(own, list)
    states: dict[Any, Any] = dict(enumerate(own)) if of_chain else {0: own}
    for number, state in states.items():
        for group in param_groups(state):
            group.update(*kept)
        tensors = resharded.get(number, {}) if of_chain else resharded
        state["param_state"] = tensors.get("param_state", {})
        state["param_state_sharding_type"] = SHARDING_TYPE
    return list(states.values()) if of_chain else own


def state_to_load(chunks: Sequence[Any], optimizer: Any, scheduler: Any, reference: Reference = ()) -> dict[str, Any]:
    """Returns the state of this layout, whose tensors say which parts of a checkpoint's tensors a rank reads."""
    return _state(chunks, optimizer, scheduler, reference, is_loading=True)


def read(path: Path, state: dict[str, Any], *, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """Reads the checkpoint's parts of a state, and its objects that are not sharded. A collective.

    Args:
        ignored: keys of the checkpoint that the state may lack. Every other key has to be on both sides.

    Raises:
        UserError: the folder is damaged, has pickles that could run code, or was written by another model or layout.
    """
    try:
        agree.run_on_rank_0(lambda: read_index(path))  # finds a file that is missing or cut
        with environment_with(_WITHOUT_CODE):
            loaded: Any = dist_checkpointing.load(state, str(path), strict=StrictHandling.RETURN_ALL)
        found, missing, unexpected = loaded
        if different := sorted({*missing, *unexpected} - {*ignored}):
            raise KeyError(f"{different[0]} is on one side only")
        return found
    except (Exception, CheckpointException) as error:  # there are many kinds; CheckpointException is a BaseException
        raise UserError(
            f"the checkpoint {path} cannot be loaded ({describe_error(error).partition(';')[0]}): it is damaged, or of "
            "another model or layout; resume from an older checkpoint of the same run"
        ) from error


def load_chunks(chunks: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Copies the model's tensors of a state that was read into the chunks, which it names completely."""
    for number, chunk in enumerate(chunks):
        _unwrap(chunk).load_state_dict(state[f"model{number}"], strict=False)  # it has no `_extra_state`


def load_reference(reference: Reference, state: Mapping[str, Any]) -> None:
    """Copies the reference's tensors of a state that was read."""
    for number, weights in enumerate(reference):
        for name, weight in weights.items():
            weight.copy_(state[f"reference{number}"][name])


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
    tensor_parallel.get_cuda_rng_tracker().set_states(random["tracker"])  # pyright: ignore


def seed_random_states(seed: int, num_steps: int) -> None:
    """Seeds the random states as a start does, with equal numbers on the same ranks, by the number of updates too."""
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


def _as_reference(sharded: Any, weight: torch.Tensor) -> Any:
    found = copy(sharded)
    found.key, found.data = f"reference.{sharded.key}", weight
    return found


def _state(
    chunks: Sequence[Any], optimizer: Any, scheduler: Any, reference: Reference = (), *, is_loading: bool
) -> dict[str, Any]:
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
    with divided_state(optimizer):
        state["optimizer"] = optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)
    if not is_loading:
        divide_weights(model, optimizer)
    for number, weights in enumerate(reference):  # sharded as the model is, and written by the same ranks
        sharded = state[f"model{number}"].items()
        state[f"reference{number}"] = {name: _as_reference(tensor, weights[name]) for name, tensor in sharded}
    state["scheduler"] = scheduler.state_dict()
    random = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        # Megatron's named random states, with which tensor-parallel ranks draw equal or different numbers
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),  # pyright: ignore
    }
    state["random"] = ShardedObject("random", random, (dist.get_world_size(),), (dist.get_rank(),), replica_id=0)
    return state
