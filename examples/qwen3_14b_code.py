"""Trains Qwen3-14B on CodeActInstruct with SSPO, in the paper's setting.

    megatron-sspo train examples/qwen3_14b_code.py            the paper's μ = 2
    megatron-sspo train examples/qwen3_14b_code.py:stale      staler rollouts, μ = 4

For stale rollouts, the study on small models (docs/study.md) says: lower the learning rate, or make the gate one-sided:
--set "objective=sspo(Pessimistic(AtanLog()))".

The model writes code between <execute> and </execute>. The code is run, and the model sees its output
(docs/environments.md). The environment and the reward need a sandbox: bubblewrap on this machine
(`make install-sandbox`), or a sandbox on another machine (`--set rollouts.environment_options.url=... --set
reward_options.url=...`), see docs/sandbox.md. docs/data.md describes how the rows of the set are judged.
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
