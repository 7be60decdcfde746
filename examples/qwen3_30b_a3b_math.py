"""Qwen3-30B-A3B on DAPO's mathematics by SSPO, in the paper's setting.

megatron-sspo train examples/qwen3_30b_a3b_math.py            the paper's μ = 2
megatron-sspo train examples/qwen3_30b_a3b_math.py:stale      the harsher regime, μ = 4
"""

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe(mu: int = 2) -> Run:
    """16 GPUs: every 8 share the experts, and the optimizer's state is spread over all of them."""
    return paper(
        "qwen3_30b_a3b_math",
        "Qwen3-30B-A3B",
        DAPO_MATH,
        Parallel(data=16, expert=8),
        mu=mu,
        evaluation=("aime24", "aime25", "math-500"),
    )


def stale() -> Run:
    """The same with the sampler refreshed every 4 updates."""
    return recipe(mu=4)
