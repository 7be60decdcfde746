"""Distils sums from a teacher into a model that knows them badly, on the model's own responses.

    megatron-sspo train examples/tiny_moe.py --set name=tiny_moe-student --set num_updates=2 --set warm_start.updates=80
    megatron-sspo train examples/tiny_moe.py --set name=tiny_moe-teacher --set num_updates=2 \\
        --set warm_start.prompts.options.wrong_fraction=0 --set warm_start.updates=400
    megatron-sspo train examples/tiny_moe_distill.py

The teacher has learned from worked sums without mistakes, and the student for a shorter time from sums of which half
have one. docs/distillation.md compares this recipe with the others of the file, each at the learning rate that was the
best for it on another seed: `megatron-sspo train examples/tiny_moe_distill.py:reward_alone`.
"""

from dataclasses import replace

import tiny_moe

from megatron_sspo.objective import grpo
from megatron_sspo.run import Evaluation, Model, Optimizer, Parallel, Run, Teacher


def recipe() -> Run:
    """Returns a run that learns by the forward KL to the teacher alone."""
    return _run("divergence", 4e-4, Teacher(path=_TEACHER, reward_weight=0.0, top_k=8, beta=0.0))


def sampled_token() -> Run:
    """Returns a run that learns from the teacher's log-prob of the sampled token alone."""
    return _run("sampled_token", 4e-4, Teacher(path=_TEACHER, reward_weight=0.0))


def with_reward() -> Run:
    """Returns a run that learns from that and from the reward."""
    return _run("with_reward", 4e-4, Teacher(path=_TEACHER))


def reward_alone() -> Run:
    """Returns a run that learns from the reward alone."""
    return _run("reward_alone", 5e-5, None)


_TEACHER = "runs/tiny_moe-teacher/model"


def _run(name: str, rate: float, teacher: Teacher | None) -> Run:
    quickstart = tiny_moe.recipe()
    assert quickstart.evaluation is not None
    return replace(
        quickstart,
        name=f"distill-{name}",
        model=Model(path="runs/tiny_moe-student/model", dtype="float32"),
        parallel=Parallel(),
        warm_start=None,
        teacher=teacher,
        objective=grpo(),
        updates_per_sync=1,
        num_updates=60,
        optimizer=Optimizer(lr=rate, warmup_updates=4),
        evaluation=Evaluation(sets=quickstart.evaluation.sets, every=20),
        checkpoint_every=0,
    )
