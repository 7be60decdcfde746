"""The recipe: a tiny model learns to write a number backwards."""

from pathlib import Path

from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Prompts, Rollouts, Run, WarmStart
from megatron_sspo.types import Sampling

HERE = Path(__file__).parent


def recipe() -> Run:
    """Returns the run."""
    return Run(
        name="reverse",
        model=Model(path=str(HERE / "model"), init="random", dtype="float32"),
        prompts=rows("train.jsonl"),
        warm_start=WarmStart(
            prompts=rows("train.jsonl"), updates=150, batch_size=64, optimizer=Optimizer(lr=2e-3, warmup_updates=20)
        ),
        rollouts=Rollouts(prompts_per_update=16, group_size=8, sampling=Sampling(max_tokens=8)),
        reward=f"{HERE / 'reward.py'}:reward",
        num_updates=40,
        optimizer=Optimizer(lr=1e-4, warmup_updates=4),
        tokens_per_microbatch=4096,
        evaluation=Evaluation(sets={"held_out": HeldOut(prompts=rows("held_out.jsonl"))}, every=20),
    )


def rows(name: str) -> Prompts:
    """Returns the rows of a file in this folder."""
    return Prompts(
        source=str(HERE / name), options={"demonstration": "demonstration"}, template="{question}", max_tokens=8
    )
