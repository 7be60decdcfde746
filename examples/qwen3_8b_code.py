"""Qwen3-8B on CodeActInstruct by SSPO, in the paper's setting.

    megatron-sspo train examples/qwen3_8b_code.py            the paper's μ = 2
    megatron-sspo train examples/qwen3_8b_code.py:stale      the harsher regime, μ = 4

The reward executes the model's programs in a sandbox, which needs bubblewrap (`make install-sandbox`) or is on another
machine (`--set reward_options.url=...`): docs/sandbox.md. What the set's rows are judged by is in docs/data.md.
"""

from megatron_sspo.paper import CODEACT, paper
from megatron_sspo.run import Parallel, Run


def recipe(mu: int = 2) -> Run:
    """8 GPUs."""
    return paper(
        "qwen3_8b_code",
        "Qwen3-8B",
        CODEACT,
        Parallel(data=4, tensor=2, sequence=True),
        mu=mu,
        reward="code",
        evaluation=("codeact",),
    )


def stale() -> Run:
    """The same with the sampler refreshed every 4 updates."""
    return recipe(mu=4)
