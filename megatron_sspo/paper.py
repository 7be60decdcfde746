"""The settings that the SSPO paper's experiments share, for recipes to vary (arXiv 2602.19327, §4.2 and appendix A).

The paper gives G = 8 responses a prompt, at most 512 tokens, no KL term, a rollout policy that is updated every μ = 2
optimizer steps (4 for staler rollouts), and (τ_neg, τ_pos) from {(0.3, 0.2), (0.6, 0.5)}. It gives no learning rate,
batch size or layout: the values here are our starting points and have not been run. The paper also gives neither its
prompts nor the number of turns of a CodeAct task: here at most five, in 2048 tokens, which is four times 512.

Data sets: Qwen2.5-7B-Instruct trains on GSM8K and DeepMath-103K, and is evaluated on GSM8K, MATH-500 and AIME 2025.
Qwen3 trains on "DAPO-103K" for mathematics, evaluated on AIME 2024, AIME 2025 and MATH-500, and on CodeAct for code,
evaluated on CodeAct's test split. No set is published as DAPO-103K: DAPO-Math-17k replaces it here (docs/paper.md).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from megatron_sspo.data.template import CODEACT_INSTRUCTION, THINK_ANSWER_INSTRUCTION
from megatron_sspo.objective import AtanLog, sspo
from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Sampling

# Full recomputation keeps only each layer's input and computes the layer again in the backward pass. Without it, the
# activations of a microbatch of 16,384 tokens take more memory than an 80 GB GPU has left (slurm/README.md).
RECOMPUTE = MappingProxyType(
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
)

GSM8K_TEST = Prompts(source="gsm8k", options={"split": "test"}, system=THINK_ANSWER_INSTRUCTION)
MATH_500 = Prompts(source="math_500", system=THINK_ANSWER_INSTRUCTION)
AIME_2024 = Prompts(source="aime24", system=THINK_ANSWER_INSTRUCTION)
AIME_2025 = Prompts(source="aime25", system=THINK_ANSWER_INSTRUCTION)
CODEACT_TEST = Prompts(
    source="codeact", options={"split": "test"}, system=CODEACT_INSTRUCTION, max_tokens=4096, overlong="drop"
)

# The held-out sets by name: prompts, column titles of the paper's tables, reward and environment.
HELD_OUT: Mapping[str, HeldOut] = MappingProxyType(
    {
        "gsm8k": HeldOut(prompts=GSM8K_TEST, title="GSM8K", reward="math", environment=""),
        "math-500": HeldOut(prompts=MATH_500, title="M500", reward="math", environment=""),
        "aime24": HeldOut(prompts=AIME_2024, title="A24", reward="math", environment=""),
        "aime25": HeldOut(prompts=AIME_2025, title="A25", reward="math", environment=""),
        "codeact": HeldOut(
            prompts=CODEACT_TEST, title="CodeAct", reward="codeact", environment="codeact", max_tokens=2048
        ),
    }
)

# `without` names the evaluation sets, so that none of their questions is trained on.
GSM8K_AND_DEEPMATH = Prompts(
    source="mixture",
    options={"sets": {"gsm8k": {}, "deepmath_103k": {}}},
    system=THINK_ANSWER_INSTRUCTION,
    overlong="drop",
    without=(GSM8K_TEST, MATH_500, AIME_2025),
)
DAPO_MATH = Prompts(
    source="dapo_math",
    system=THINK_ANSWER_INSTRUCTION,
    overlong="drop",
    without=(AIME_2024, AIME_2025, MATH_500),
)
CODEACT = Prompts(
    source="codeact",
    system=CODEACT_INSTRUCTION,
    max_tokens=4096,
    overlong="drop",
    without=(CODEACT_TEST,),
)


def paper(
    name: str,
    model: str,
    prompts: Prompts,
    parallel: Parallel,
    *,
    mu: int = 2,
    reward: str = "math",
    environment: str = "",
    max_tokens: int = 512,
    evaluation: Sequence[str],
) -> Run:
    """Returns one of the paper's runs.

    Args:
        name: the name of the run's folder; "-stale" is appended unless μ = 2.
        model: a Hugging Face folder under `models/`.
        mu: the number of optimizer steps between two syncs of the engine's weights.
        max_tokens: the maximum number of response tokens, over all turns.
        evaluation: names of sets in `HELD_OUT`.
    """
    return Run(
        name=name if mu == 2 else f"{name}-stale",
        model=Model(path=str(Path("models") / model)),
        prompts=prompts,
        parallel=parallel,
        rollouts=Rollouts(
            engine="sglang",
            prompts_per_update=64,
            group_size=8,
            sampling=Sampling(max_tokens=max_tokens, temperature=1.0),
            environment=environment,
        ),
        reward=reward,
        objective=sspo(AtanLog(tau_neg=0.3, tau_pos=0.2)),
        updates_per_sync=mu,
        num_updates=400,
        optimizer=Optimizer(lr=1e-6, warmup_updates=10, beta2=0.95),
        tokens_per_microbatch=16384,
        evaluation=Evaluation(sets={name: HELD_OUT[name] for name in evaluation}, every=40),
        checkpoint_every=40,
        megatron=dict(RECOMPUTE),
    )


def evaluation() -> Run:
    """Returns the default recipe of `megatron-sspo evaluate`: all sets, 512 tokens a response, the embedded engine.

    Its model, prompts and objective are placeholders, because nothing is trained.
    """
    return Run(
        name="evaluation",
        model=Model(path="models"),
        prompts=GSM8K_AND_DEEPMATH,
        num_updates=1,
        rollouts=Rollouts(sampling=Sampling(max_tokens=512, temperature=1.0)),
        evaluation=Evaluation(sets=HELD_OUT),
    )
