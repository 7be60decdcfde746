"""Trains Qwen3-30B-A3B on CodeActInstruct with SSPO, in the paper's setting.

    megatron-sspo train examples/qwen3_30b_a3b_code.py            the paper's μ = 2
    megatron-sspo train examples/qwen3_30b_a3b_code.py:stale      staler rollouts, μ = 4

The code that the model writes is run in a sandbox: docs/environments.md and docs/sandbox.md.
"""

from megatron_sspo.paper import CODEACT, paper
from megatron_sspo.run import Parallel, Run


def recipe(mu: int = 2) -> Run:
    """Uses 16 GPUs: experts are sharded over 8 of them, the optimizer state over all 16."""
    return paper(
        "qwen3_30b_a3b_code",
        "Qwen3-30B-A3B",
        CODEACT,
        Parallel(data=16, expert=8),
        mu=mu,
        reward="codeact",
        environment="codeact",
        max_tokens=2048,
        evaluation=("codeact",),
    )


def stale() -> Run:
    """Sends weights to the engine every 4 updates instead of every 2."""
    return recipe(mu=4)
