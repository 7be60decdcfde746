"""Loads a checkpoint into another layout than the one that wrote it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_sspo.checkpoint import sharded

_KEPT = ("step",)  # fields of a parameter group that the checkpoint sets


def load_resharded(path: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any, *, seed: int) -> None:
    """Restores model, optimizer and schedule in any layout, and seeds the random states anew. A collective.

    Each rank reads its parts of the whole tensors, which `fully_reshardable` (docs/checkpoints.md) writes for the
    optimizer too. Parameter groups are made by this layout, because whether experts have an optimizer of their own
    depends on it, and only their step count is the checkpoint's.

    Args:
        seed: the run's seed. With the number of updates it gives the new random states, as a start does: ranks that
            draw equal numbers at a start draw equal numbers here.

    Raises:
        UserError: the folder is damaged, or was written by another model.
    """
    state = sharded.state_to_load(chunks, optimizer, scheduler)
    del state["random"]  # a state per rank of the other layout
    state["resharded"] = state.pop("optimizer")  # beside the checkpoint's groups, which Megatron would merge into it
    loaded = sharded.read(path, state, ignored=("random",))
    sharded.load_chunks(chunks, loaded)
    optimizer.load_state_dict(_optimizer_state(optimizer.state_dict(), loaded["resharded"], loaded["optimizer"]))
    sharded.load_schedule(scheduler, loaded["scheduler"])
    sharded.seed_random_states(seed, scheduler.num_steps)


def _optimizer_state(own: Any, resharded: Mapping[Any, Any], saved: Mapping[Any, Any]) -> Any:
    """Returns the state to load: this layout's groups, the resharded tensors, and what the saved groups agree on."""
    kept = {name: group[name] for name in _KEPT for group in sharded.param_groups(saved) if name in group}
    of_chain = isinstance(own, list)
    states: dict[Any, Any] = dict(enumerate(own)) if of_chain else {0: own}
    for number, state in states.items():
        for group in sharded.param_groups(state):
            group.update(kept)
        tensors = resharded.get(number, {}) if of_chain else resharded
        state["param_state"] = tensors.get("param_state", {})
        state["param_state_sharding_type"] = sharded.SHARDING_TYPE
    return list(states.values()) if of_chain else own
