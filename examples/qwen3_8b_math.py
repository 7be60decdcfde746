"""Trains Qwen3-8B on DAPO's mathematics with SSPO, in the paper's setting (docs/paper_recipes.md).

megatron-sspo train examples/qwen3_8b_math.py            the paper's μ = 2
megatron-sspo train examples/qwen3_8b_math.py:stale      staler rollouts, μ = 4
"""

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe(mu: int = 2) -> Run:
    """Uses 8 GPUs."""
    return paper(
        "qwen3_8b_math",
        "Qwen3-8B",
        DAPO_MATH,
        Parallel(data=4, tensor=2, sequence=True),
        mu=mu,
        evaluation=("aime24", "aime25", "math-500"),
    )


def stale() -> Run:
    """Sends weights to the engine every 4 updates instead of every 2."""
    return recipe(mu=4)
