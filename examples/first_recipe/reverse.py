"""A first recipe: a tiny model learns to write a number backwards. See docs/first_recipe.md."""

from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Prompts, Rollouts, Run, WarmStart
from megatron_sspo.types import Prompt, Sampling

HERE = Path(__file__).parent
TINY_MOE = "../tiny_moe"  # config.json and tokenizer; the weights are random


class Digits:
    """The share of digits that are right, and 1 more if the whole answer is."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and response."""
        return [
            {
                "digits": sum(a == b for a, b in zip(prompt.answer, response, strict=False)) / len(prompt.answer),
                "answer": float(response == prompt.answer),
            }
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


def reward() -> Digits:
    """Builds the reward."""
    return Digits()


def recipe() -> Run:
    """Returns the run."""
    return Run(
        name="reverse",
        model=Model(path=str(HERE / TINY_MOE), init="random", dtype="float32"),
        prompts=rows("train.jsonl"),
        warm_start=WarmStart(
            prompts=rows("train.jsonl"), updates=150, batch_size=64, optimizer=Optimizer(lr=2e-3, warmup_updates=20)
        ),
        rollouts=Rollouts(prompts_per_update=16, group_size=8, sampling=Sampling(max_tokens=8)),
        reward=f"{__file__}:reward",
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
