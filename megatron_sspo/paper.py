"""The settings that the SSPO paper's experiments share, for recipes to vary (arXiv 2602.19327, §4.2 and appendix A).

What the paper gives: G = 8 responses a prompt, at most 512 tokens, no KL term, the sampler refreshed every μ = 2
optimizer steps (4 in the harsher regime), and (τ_neg, τ_pos) from {(0.3, 0.2), (0.6, 0.5)}. It gives no learning rate,
batch size or layout: those here are starting points of ours, and have not been run.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from megatron_sspo.data.template import THINK_ANSWER_INSTRUCTION
from megatron_sspo.objective import AtanLog, sspo
from megatron_sspo.rollout.engine import Sampling
from megatron_sspo.run import Evaluation, Model, Optimizer, Parallel, Prompts, Rollouts, Run

DAPO_MATH = Prompts(
    source="huggingface",
    options={"name": "BytedTsinghua-SIA/DAPO-Math-17k", "question": "prompt", "answer": "reward_model.ground_truth"},
    system=THINK_ANSWER_INSTRUCTION,
)
GSM8K = Prompts(
    source="huggingface",
    options={"name": "openai/gsm8k", "config": "main", "answer_after": "####"},
    system=THINK_ANSWER_INSTRUCTION,
)
GSM8K_TEST = Prompts(
    source="huggingface",
    options={"name": "openai/gsm8k", "config": "main", "split": "test", "answer_after": "####"},
    system=THINK_ANSWER_INSTRUCTION,
)
MATH_500 = Prompts(
    source="huggingface",
    options={"name": "HuggingFaceH4/MATH-500", "split": "test", "question": "problem"},
    system=THINK_ANSWER_INSTRUCTION,
)


def paper(
    name: str,
    model: str,
    prompts: Prompts,
    parallel: Parallel,
    *,
    mu: int = 2,
    reward: str = "math",
    evaluation: Prompts | None = None,
    megatron: Mapping[str, Any] = MappingProxyType({}),
) -> Run:
    """One of the paper's runs.

    Args:
        name: of the run's folder; "-stale" is added for μ = 4.
        model: a Hugging Face folder under `models/`.
        mu: optimizer steps between refreshes of the sampler.
        megatron: further fields of Megatron's TransformerConfig.
    """
    return Run(
        name=name if mu == 2 else f"{name}-stale",
        model=Model(path=str(Path("models") / model)),
        prompts=prompts,
        parallel=parallel,
        rollouts=Rollouts(
            engine="sglang", prompts_per_update=64, group_size=8, sampling=Sampling(max_tokens=512, temperature=1.0)
        ),
        reward=reward,
        objective=sspo(AtanLog(tau_neg=0.3, tau_pos=0.2)),
        updates_per_sync=mu,
        num_updates=400,
        optimizer=Optimizer(lr=1e-6, warmup_updates=10, beta2=0.95),
        tokens_per_microbatch=16384,
        evaluation=Evaluation(prompts=evaluation, every=40) if evaluation else None,
        checkpoint_every=40,
        megatron=dict(megatron),
    )
