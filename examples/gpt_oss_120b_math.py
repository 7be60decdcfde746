"""Trains gpt-oss-120b on DAPO's mathematics with SSPO, in the paper's setting, with the optimizer on the host.

megatron-sspo train examples/gpt_oss_120b_math.py
"""

from dataclasses import replace

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe() -> Run:
    """Uses 16 GPUs: two stages of 18 layers, of one node each, and 16 of the 128 experts a GPU.

    A node's host needs 1.5 TB of memory.
    """
    run = paper(
        "gpt_oss_120b_math",
        "gpt-oss-120b",
        DAPO_MATH,
        Parallel(data=8, pipeline=2, expert=8),
        evaluation=("aime24", "aime25", "math-500"),
    )
    return replace(run, optimizer=replace(run.optimizer, offload=1.0))
