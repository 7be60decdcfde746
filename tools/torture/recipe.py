"""The recipes that are tortured. The trainer loads this file, so that it imports nothing of the harness.

The harness says by the environment where the model and the prompts are, and where the books are to be kept.
"""

import os
from pathlib import Path

from megatron_sspo.rollout.engine import Sampling
from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run

FOLDER = Path(os.environ["TORTURE_FOLDER"])
PLUGINS = Path(__file__).with_name("plugins.py")


def embedded() -> Run:
    """Two processes that hold half of the experts each and generate themselves: every number repeats to the bit."""
    return Run(
        name="run",
        model=Model(path=str(FOLDER / "model"), init="random", dtype="float32"),
        prompts=_additions(10),  # fewer than a run takes: the stream begins new epochs
        rollouts=Rollouts(prompts_per_update=3, group_size=4, sampling=Sampling(max_tokens=12)),
        reward=f"{PLUGINS}:digits",
        num_updates=40,
        parallel=Parallel(data=2, expert=2),
        optimizer=Optimizer(lr=1e-3, schedule="linear"),
        tokens_per_microbatch=64,
        evaluation=Evaluation(sets={"sums": HeldOut(prompts=_additions(8, "held_out"))}, every=10),
        checkpoint_every=1,
        checkpoints_kept=3,
        checkpoint_in_background=True,
        check_memory=False,
    )


def served() -> Run:
    """Two processes, two SGLang servers that generate while the trainer works, and programs judged in the sandbox."""
    return Run(
        name="run",
        model=Model(path=str(FOLDER / "model"), init="random", dtype="float32"),
        prompts=Prompts(
            source=str(FOLDER / "prompts.jsonl"), template="{question}", max_tokens=8
        ),  # as many as three cycles and a half take
        rollouts=Rollouts(
            engine="sglang",
            options={"num_servers": 2, "max_restarts": 1000, "health_seconds": 10.0, "verify_every": 2},
            prompts_per_update=3,
            group_size=4,
            max_staleness=2,
            sampling=Sampling(max_tokens=32),
        ),
        reward=f"{PLUGINS}:programs",
        num_updates=30,
        parallel=Parallel(data=2, expert=2),
        optimizer=Optimizer(lr=1e-5),
        tokens_per_microbatch=128,
        checkpoint_every=1,
        checkpoints_kept=3,
        checkpoint_in_background=True,
        check_memory=False,
    )


def _additions(size: int, split: str = "train") -> Prompts:
    return Prompts(source="arithmetic", options={"size": size, "split": split}, template="{question}", max_tokens=8)


def _keep_books() -> None:
    """Has rank 0 note what each update has learned from, before anything else is told of the update."""
    import hashlib
    import json
    import warnings

    with warnings.catch_warnings():  # Megatron's, about what is not installed; the trainer silences them later
        warnings.simplefilter("ignore")
        from megatron_sspo.job import Job

    journal, life = Path(os.environ["TORTURE_JOURNAL"]), int(os.environ["TORTURE_LIFE"])
    after_update = Job.after_update

    def content(rollout) -> str:
        """Of a response, such that chance does not repeat a long one."""
        return hashlib.sha256(repr((rollout.tokens, rollout.rollout_log_probs)).encode()).hexdigest()[:20]

    def noted(self, batch, record) -> None:
        groups = [
            {
                "prompt": group.prompt.id,
                "rollouts": [
                    {
                        "serial": rollout.reward_parts.get("serial"),
                        "content": content(rollout),
                        "tokens": len(rollout.tokens),
                        "version": rollout.policy_version,
                    }
                    for rollout in group.rollouts
                ],
            }
            for group in batch
        ]
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"life": life, "update": self.state.update, "groups": groups}) + "\n")
        after_update(self, batch, record)

    Job.after_update = noted


if os.environ.get("RANK") == "0":
    _keep_books()
