"""Trains Qwen2.5-7B-Instruct on GSM8K and DeepMath-103K with SSPO: the model of the paper's ablation.

docs/paper_recipes.md has all recipes.

megatron-sspo train examples/qwen2_5_7b_math.py            the paper's μ = 2
megatron-sspo train examples/qwen2_5_7b_math.py:stale      staler rollouts, μ = 4
"""

from megatron_sspo.paper import GSM8K_AND_DEEPMATH, paper
from megatron_sspo.run import Parallel, Run


def recipe(mu: int = 2) -> Run:
    """Uses 8 GPUs. Every question of both sets comes once per epoch; the paper does not say how it mixes the sets."""
    return paper(
        "qwen2_5_7b_math",
        "Qwen2.5-7B-Instruct",
        GSM8K_AND_DEEPMATH,
        Parallel(data=4, tensor=2, sequence=True),
        mu=mu,
        evaluation=("gsm8k", "math-500", "aime25"),
    )


def stale() -> Run:
    """Sends weights to the engine every 4 updates instead of every 2."""
    return recipe(mu=4)
