"""Measures the memory of one update in several layouts, in one group of processes: a JSON file per layout and rank.

It counts bytes of tensors, not of the process: the storages of the parameters and of DDP's gradient buffers, those of
the optimizer's own tensors, and beyond these the most that is alive at once while an update runs. The last comes from a
`TorchDispatchMode`, which sees every tensor that an operator returns, also in the backward pass, and notes when its
storage is freed. Memory that operators allocate internally is not counted.
"""

import gc
import json
import sys
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from launcher import join
from memory_layouts import LAYOUTS, OBJECTIVE, PROMPT, RESPONSE, sequences_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatron_sspo.policy.distributed import initialize
from megatron_sspo.policy.policy import Policy
from megatron_sspo.types import Prompt, Rollout, RolloutGroup

Storages = dict[int, int]  # address -> bytes


class Peak(TorchDispatchMode):
    """The most bytes alive at once, of storages that were created while the mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known: set[int] = set()

    def ignore(self, storages: Storages) -> None:
        """Excludes storages that existed before."""
        self._known |= storages.keys()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return found

    def _note(self, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in self._known:
            return
        self._known.add(address)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._died, address, size)

    def _died(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.alive -= size


def storages(tensors: Iterable[torch.Tensor]) -> Storages:
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def optimizer_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yields main parameters and moments of every optimizer in the chain."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter
                yield from (value for value in part.optimizer.state[parameter].values() if torch.is_tensor(value))


def batch(number: int, vocab_size: int) -> list[RolloutGroup]:
    """Returns `number` sequences, all of one length."""
    generator = torch.Generator().manual_seed(0)

    def integers(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, vocab_size, (count,), generator=generator).tolist())

    def rollout(index: int) -> Rollout:
        return Rollout(
            tokens=integers(RESPONSE), rollout_log_probs=(-6.0,) * RESPONSE, text="", finish_reason="stop",
            policy_version=0, advantage=(-1.0) ** index, old_log_probs=(-6.0,) * RESPONSE,
        )  # fmt: skip

    return [
        RolloutGroup(
            prompt=Prompt(id=str(i), tokens=integers(PROMPT), answer=""), rollouts=[rollout(2 * i), rollout(2 * i + 1)]
        )
        for i in range(number // 2)
    ]


def measure(name: str, model: Path) -> dict[str, float]:
    run = LAYOUTS[name]
    device = initialize(run.parallel, seed=0)
    policy = Policy(run, model, device)
    rollouts = batch(sequences_of(run), policy.vocab_size)
    policy.update(rollouts, OBJECTIVE)  # the first update creates the moments
    gc.collect()
    buffers = [buffer for chunk in policy.chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    weights = storages(parameter for chunk in policy.chunks for parameter in chunk.parameters())
    gradients = storages(buffer.grad_data for buffer in buffers)
    optimizer = storages(optimizer_tensors(policy.optimizer))
    optimizer = {address: size for address, size in optimizer.items() if address not in weights}
    with Peak() as peak:
        peak.ignore(weights | gradients | optimizer)
        policy.update(rollouts, OBJECTIVE)
    shutdown_parallel()
    return {
        "weights": sum(weights.values()),
        "gradients": sum(gradients.values()),
        "optimizer": sum(optimizer.values()),
        "activations": peak.peak,
    }


def shutdown_parallel() -> None:
    """Destroys Megatron's groups, so that the next layout can make its own; the default process group stays."""
    from megatron.core import parallel_state

    dist.barrier()
    parallel_state.destroy_model_parallel()


if __name__ == "__main__":
    models, results = map(Path, sys.argv[1:])
    join()
    for layout in LAYOUTS:
        numbers = measure(layout, models)
        (results / f"{layout}-{dist.get_rank()}.json").write_text(json.dumps(numbers))
    dist.destroy_process_group()
