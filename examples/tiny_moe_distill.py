"""Distils sums from a teacher into the model that the quickstart's warm start makes, on the model's own responses.

    megatron-sspo train examples/tiny_moe.py --set name=tiny_moe-warm --set num_updates=2
    megatron-sspo train examples/tiny_moe.py --set name=tiny_moe-teacher --set num_updates=2 \\
        --set warm_start.prompts.options.wrong_fraction=0 --set warm_start.updates=400
    megatron-sspo train examples/tiny_moe_distill.py

The teacher has learned from worked sums without mistakes, and the student from sums of which half have one. With
`--set teacher=None` the same run learns by the reward alone.
"""

from dataclasses import replace

import tiny_moe

from megatron_sspo.run import Model, Run, Teacher


def recipe() -> Run:
    """Returns the quickstart's run with a teacher, whose log-probs are added to the reward's advantages."""
    return replace(
        tiny_moe.recipe(),
        name="tiny_moe_distill",
        model=Model(path="runs/tiny_moe-warm/model", dtype="float32"),
        warm_start=None,
        teacher=Teacher(path="runs/tiny_moe-teacher/model"),
        num_updates=20,
    )
