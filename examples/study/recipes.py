"""Recipes of the study (docs/study.md); a run takes some two minutes on one core.

megatron-sspo train examples/study/recipes.py:warm_sums --set seed=0 --set name=warm-0
megatron-sspo sweep examples/study/recipes.py:sums --start-from "runs/warm-{seed}" --seeds 2 --vary ...
"""

from dataclasses import replace
from pathlib import Path

from megatron_sspo.recipe import load_recipe
from megatron_sspo.run import Optimizer, Parallel, Run

_TINY_MOE = Path(__file__).parents[1] / "tiny_moe.py"


def sums() -> Run:
    """Returns a run of 96 updates on sums of two numbers, by the quickstart's mixture of experts on one process."""
    run = load_recipe(str(_TINY_MOE))
    assert run.evaluation is not None
    return replace(
        run,
        name="sums",
        parallel=Parallel(),
        warm_start=None,
        num_updates=96,
        checkpoint_every=0,
        evaluation=replace(run.evaluation, every=12),
    )


def warm_sums() -> Run:
    """Returns the warm start of `sums` alone: its one update has a learning rate of 0."""
    run = load_recipe(str(_TINY_MOE))
    return replace(
        sums(), name="warm", warm_start=run.warm_start, num_updates=1, updates_per_sync=1, optimizer=Optimizer(lr=0.0)
    )
