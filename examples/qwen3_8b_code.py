"""Qwen3-8B on CodeActInstruct by SSPO, in the paper's setting.

    megatron-sspo train examples/qwen3_8b_code.py            the paper's μ = 2
    megatron-sspo train examples/qwen3_8b_code.py:stale      the harsher regime, μ = 4

The model acts: what it writes between <execute> and </execute> is run, and it sees what that prints (docs/rollouts.md).
That and the reward need a sandbox: bubblewrap here (`make install-sandbox`), or one on another machine (`--set
rollouts.environment_options.url=... --set reward_options.url=...`): docs/sandbox.md. What the set's rows are judged by
is in docs/data.md.
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
        reward="codeact",
        environment="codeact",
        max_tokens=2048,
        evaluation=("codeact",),
    )


def stale() -> Run:
    """The same with the sampler refreshed every 4 updates."""
    return recipe(mu=4)
