"""Qwen3-30B-A3B on CodeActInstruct by SSPO, in the paper's setting.

    megatron-sspo train examples/qwen3_30b_a3b_code.py            the paper's μ = 2
    megatron-sspo train examples/qwen3_30b_a3b_code.py:stale      the harsher regime, μ = 4

The model acts: what it writes between <execute> and </execute> is run, and it sees what that prints (docs/rollouts.md).
That and the reward need a sandbox: bubblewrap here (`make install-sandbox`), or one on another machine (`--set
rollouts.environment_options.url=... --set reward_options.url=...`): docs/sandbox.md. What the set's rows are judged by
is in docs/data.md.
"""

from megatron_sspo.paper import CODEACT, paper
from megatron_sspo.run import Parallel, Run


def recipe(mu: int = 2) -> Run:
    """16 GPUs: every 8 share the experts, and the optimizer's state is spread over all of them."""
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
    """The same with the sampler refreshed every 4 updates."""
    return recipe(mu=4)
