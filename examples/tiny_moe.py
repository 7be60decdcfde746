"""Trains a small Qwen3-MoE to add numbers: the whole loop on two CPU cores, in minutes.

    megatron-sspo train examples/tiny_moe.py

The model (1.9 million parameters, 8 experts, 2 experts per token) starts from random weights. A short warm start on
worked sums teaches it the template and unreliable arithmetic: half of the sums contain a mistake such as a forgotten
carry. SSPO then makes it reliable with only the reward. It runs on two processes, which hold four of the eight experts
each.
"""

from pathlib import Path

from megatron_sspo.objective import AtanLog, sspo
from megatron_sspo.rollout.engine import Sampling
from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run, WarmStart


def recipe() -> Run:
    """Returns the run: SSPO with μ = 2 and G = 8, expert parallelism 2."""
    return Run(
        name="tiny_moe",
        model=Model(path=str(Path(__file__).parent / "tiny_moe"), init="random", dtype="float32"),
        parallel=Parallel(data=2, expert=2),
        warm_start=WarmStart(
            prompts=additions(size=8000, wrong_fraction=0.5),
            updates=250,
            batch_size=64,
            optimizer=Optimizer(lr=2e-3, warmup_updates=20, schedule="cosine", min_lr=2e-4),
        ),
        prompts=additions(size=8000),
        rollouts=Rollouts(prompts_per_update=16, group_size=8, sampling=Sampling(max_tokens=48)),
        reward_options={"exact": True},  # compares the digits only, so that no worker process is needed
        objective=sspo(AtanLog(tau_neg=0.3, tau_pos=0.2)),
        updates_per_sync=2,
        num_updates=100,
        optimizer=Optimizer(lr=1e-4, warmup_updates=4),
        tokens_per_microbatch=8192,
        evaluation=Evaluation(sets={"additions": HeldOut(prompts=additions(size=256, split="held_out"))}, every=20),
        checkpoint_every=50,
    )


def additions(size: int, split: str = "train", wrong_fraction: float = 0.0) -> Prompts:
    """Returns sums of two numbers up to 99; a tenth of all pairs is held out."""
    return Prompts(
        source="arithmetic",
        options={"size": size, "split": split, "wrong_fraction": wrong_fraction},
        template="{question}",
        max_tokens=16,
    )
