"""Trains the language model of Qwen3.5-35B-A3B on DAPO's mathematics with SSPO, in the paper's setting, on one node.

megatron-sspo train examples/qwen3_5_35b_a3b_math.py
"""

from dataclasses import replace

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe() -> Run:
    """Uses 8 GPUs, with the optimizer in the host's memory, of which the run needs 0.9 TB."""
    run = paper(
        "qwen3_5_35b_a3b_math",
        "Qwen3.5-35B-A3B",
        DAPO_MATH,
        Parallel(data=8, expert=8),
        evaluation=("aime24", "aime25", "math-500"),
    )
    return replace(run, optimizer=replace(run.optimizer, offload=1.0))
