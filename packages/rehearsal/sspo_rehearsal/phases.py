"""The memory of a GPU in each phase of a cycle: the trainer's, and that of the server which takes turns with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_sspo.memory.estimate import CUDA_ALLOWANCE, server_memory
from megatron_sspo.run import Run
from sspo_rehearsal.account import Account
from sspo_rehearsal.machines import Machine

# phase -> the parts of a rehearsal in it
_PARTS = {
    "generate": (),
    "sync": ("gather",),
    "log π_old": ("old_log_probs",),
    "update": ("update", "step"),
    "checkpoint": (),
}
_BY_TURNS = ("generate", "sync")  # phases in which the servers have their memory


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a cycle, and the bytes of a GPU in it.

    Attributes:
        trainer: with the allowance for CUDA and NCCL.
        server: weights and cache of the server on this GPU; 0 while it has released them, and without turns. What is
            left of a server that has released its memory (its CUDA context, its communicators) is not known here.
    """

    name: str
    trainer: int
    server: int


def phases(run: Run, accounts: Sequence[Account], config: Mapping[str, Any], machine: Machine) -> list[Phase]:
    """Returns the phases of a cycle on the GPU of the pipeline stage that needs most in each.

    In turns with servers, the gradients are released from before the weights are sent until the update. A server fills
    the share `mem_fraction_static` of what is free when it starts with weights and cache; without that option SGLang
    chooses the share, and only the weights are counted.
    """
    turns = run.rollouts.takes_turns
    held = [
        max(
            _bytes(account, parts, with_gradients=not turns or name in ("update", "checkpoint")) for account in accounts
        )
        + CUDA_ALLOWANCE
        for name, parts in _PARTS.items()
    ]
    server = 0
    if turns:
        share = (run.rollouts.options.get("server") or {}).get("mem_fraction_static", 0.0)
        server = max(server_memory(run, config).weights, round(share * (machine.memory - held[0])))
    return [
        Phase(name=name, trainer=trainer, server=server if name in _BY_TURNS else 0)
        for name, trainer in zip(_PARTS, held, strict=True)
        if name != "log π_old" or any("old_log_probs" in account.peaks for account in accounts)
    ]


def _bytes(account: Account, parts: Sequence[str], *, with_gradients: bool) -> int:
    """Returns the largest sum of a rank's categories in these parts, or between updates."""
    found = [account.peaks[part] for part in parts if part in account.peaks] or [account.resident]
    left_out = () if with_gradients else ("gradients",)
    return max(sum(size for name, size in live.items() if name not in left_out) for live in found)
