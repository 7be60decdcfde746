"""The recipes that run under faults. The trainer loads this file, so it imports nothing of the harness.

Environment variables of the harness name the folder of the model and prompts, and the journal's file.
"""

import os
from pathlib import Path

from megatron_sspo.run import Evaluation, HeldOut, Model, Optimizer, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Sampling

FOLDER = Path(os.environ["TORTURE_FOLDER"])
PLUGINS = Path(__file__).with_name("plugins.py")


def embedded() -> Run:
    """Uses two processes, half of the experts on each, and the embedded engine; all numbers repeat to the bit."""
    return Run(
        name="run",
        model=Model(path=str(FOLDER / "model"), init="random", dtype="float32"),
        prompts=_additions(10),  # fewer than a run uses, so that the stream begins new epochs
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
    """Uses two processes, two SGLang servers that generate while the trainer works, and the sandbox as the judge."""
    return Run(
        name="run",
        model=Model(path=str(FOLDER / "model"), init="random", dtype="float32"),
        prompts=Prompts(source=str(FOLDER / "prompts.jsonl"), template="{question}", max_tokens=8),
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


def _write_journal() -> None:
    """Makes rank 0 write each update's rollouts to the journal, before the update appears anywhere else."""
    import hashlib
    import json
    import warnings

    with warnings.catch_warnings():  # Megatron warns of optional packages; the trainer silences this only later
        warnings.simplefilter("ignore")
        from megatron_sspo.job.job import Job

    after_update = Job.after_update

    def content(rollout) -> str:
        """Returns a digest of a response; two long responses are not equal by chance."""
        return hashlib.sha256(rollout.tokens.tobytes() + rollout.rollout_log_probs.tobytes()).hexdigest()[:20]

    def after_update_with_journal(self, batch, record) -> None:
        if os.environ["RANK"] == "0":
            write(batch, self.state.update)
        after_update(self, batch, record)

    def write(batch, update: int) -> None:
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
        line = {"attempt": int(os.environ["TORTURE_LIFE"]), "update": update, "groups": groups}
        with open(os.environ["TORTURE_JOURNAL"], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    Job.after_update = after_update_with_journal


_write_journal()
