"""Trains Qwen3-14B on CodeActInstruct with SSPO, in the paper's setting.

    megatron-sspo train examples/qwen3_14b_code.py            the paper's μ = 2
    megatron-sspo train examples/qwen3_14b_code.py:stale      staler rollouts, μ = 4

The code that the model writes is run in a sandbox: docs/environments.md and docs/sandbox.md.
"""

from megatron_sspo.paper import CODEACT, paper
from megatron_sspo.run import Parallel, Run


def recipe(mu: int = 2) -> Run:
    """Uses 8 GPUs."""
    return paper(
        "qwen3_14b_code",
        "Qwen3-14B",
        CODEACT,
        Parallel(data=2, tensor=4, sequence=True),
        mu=mu,
        reward="codeact",
        environment="codeact",
        max_tokens=2048,
        evaluation=("codeact",),
    )


def stale() -> Run:
    """Sends weights to the engine every 4 updates instead of every 2."""
    return recipe(mu=4)
