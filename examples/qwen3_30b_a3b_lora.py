"""Trains adapters of Qwen3-30B-A3B on four GPUs, with the data, reward and objective of its recipe for mathematics.

megatron-sspo launch examples/qwen3_30b_a3b_lora.py --rehearse
"""

from dataclasses import replace

import qwen3_30b_a3b_math
from qwen3_30b_a3b_one_node import in_turns

from megatron_sspo.run import LoRA, Parallel, Run


def recipe() -> Run:
    """Returns the run: rank 32 on attention and experts, experts over four ranks, ten times the learning rate."""
    weights = qwen3_30b_a3b_math.recipe()
    return replace(
        weights,
        name="qwen3_30b_a3b_lora",
        parallel=Parallel(data=4, expert=4),
        layouts={},
        rollouts=in_turns(weights.rollouts, num_servers=1),
        lora=LoRA(rank=32, alpha=64.0, targets=("attention", "experts")),
        optimizer=replace(weights.optimizer, lr=10 * weights.optimizer.lr),
    )
