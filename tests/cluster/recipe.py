"""The recipe of the tests on a cluster; each test has its own copy, beside the model's folder `config`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Prompt, Sampling

HERE = Path(__file__).parent
_LONGEST_HOLD = 600  # seconds; a busy machine needs minutes for all that a test does meanwhile


def recipe() -> Run:
    """Two ranks with half of the experts each, or one if no more nodes are free; ten updates, μ = 2."""
    return Run(
        name="run",
        model=Model(path=str(HERE / "config"), init="random", dtype="float32"),
        parallel=Parallel(data=2, expert=2),
        layouts={1: Parallel()},
        prompts=additions(40),
        rollouts=Rollouts(engine="sglang", prompts_per_update=3, group_size=4, sampling=Sampling(max_tokens=12)),
        reward=f"{__file__}:letters",
        num_updates=10,
        optimizer=Optimizer(lr=1e-3),
        tokens_per_microbatch=64,
        evaluation=Evaluation(sets={"additions": HeldOut(prompts=additions(8, "held_out"))}),
        checkpoint_every=4,
    )


def embedded() -> Run:
    """Returns the same run without servers."""
    run = recipe()
    return replace(run, rollouts=replace(run.rollouts, engine="embedded"))


def additions(size: int, split: str = "train") -> Prompts:
    return Prompts(source="arithmetic", options={"size": size, "split": split}, template="{question}", max_tokens=8)


def letters() -> "Letters":
    """Returns a reward that differs within most groups, and that waits while a test's file exists."""
    return Letters()


class Letters:
    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        deadline = time.monotonic() + _LONGEST_HOLD
        while (HERE / "hold").exists() and time.monotonic() < deadline:
            (HERE / "held").touch()
            time.sleep(0.05)
        return [{"letters": 0.1 * sum(character.isalpha() for character in response)} for response in responses]

    def close(self) -> None:
        pass
