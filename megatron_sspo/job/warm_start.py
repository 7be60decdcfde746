"""Supervised learning on demonstrations, with the same policy, schedule and packing as the later updates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from megatron_sspo.data.demonstration import demonstration
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.objective.supervised import Supervised
from megatron_sspo.processes.console import Display
from megatron_sspo.processes.stop import Stop
from megatron_sspo.run import WarmStart

if TYPE_CHECKING:
    from megatron_sspo.policy.policy import Policy


def warm_start(
    policy: Policy, options: WarmStart, prompts: PromptStream, tokenizer: Any, stop: Stop, display: Display
) -> bool:
    """Maximizes the likelihood of the prompts' demonstrations for `options.updates` steps. A collective.

    Returns False if a stop request ended it before the next step: a part of a warm start is not saved, so its other
    steps would be lost as well.
    """
    display.begin("warm start", options.updates)
    # the memory of the run is estimated and measured with its own share on the host
    optimizer = replace(options.optimizer, offload=policy.run.optimizer.offload)
    policy.set_optimizer(optimizer, options.updates)
    for number in range(1, options.updates + 1):
        if stop.is_requested():
            return False
        batch = [demonstration(prompt, tokenizer) for prompt in prompts.take(options.batch_size)]
        loss = policy.update(batch, Supervised()).loss
        display.advance(f"warm start, loss {loss:.3f}")
        if number % max(1, options.updates // 10) == 0:
            display.log(f"warm start {number}/{options.updates}  loss {loss:.4f}")
    return True
