"""Recipes of the study (docs/study.md); a run of `sums` takes some two minutes on one core.

megatron-sspo train examples/study/recipes.py:warm_sums --set seed=0 --set name=warm-0
megatron-sspo sweep examples/study/recipes.py:sums --start-from "runs/warm-{seed}" --seeds 2 --vary ...
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_sspo.recipe import load_recipe
from megatron_sspo.run import HeldOut, Optimizer, Parallel, Prompts, Run
from megatron_sspo.types import Sampling

_TINY_MOE = Path(__file__).parents[1] / "tiny_moe.py"
_SMOLLM2 = Path(__file__).parents[1] / "smollm2_arithmetic.py"
_TINY_DENSE = Path(__file__).parent / "tiny_dense"
_LONG_SUMS = Path(__file__).with_name("long_sums.py")


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


def long_sums() -> Run:
    """Returns the run on sums of four or five numbers, with responses of 60 to 120 tokens; else as `sums`."""
    run = sums()
    assert run.evaluation is not None
    held_out = {"additions": HeldOut(prompts=_long_additions(size=256, split="held_out"))}
    return replace(
        run,
        name="long_sums",
        prompts=_long_additions(size=8000),
        rollouts=replace(run.rollouts, sampling=Sampling(max_tokens=150)),
        evaluation=replace(run.evaluation, sets=held_out),
    )


def dense_sums() -> Run:
    """Returns the run of `sums` by a dense model as wide as the mixture's two active experts."""
    return replace(sums(), name="dense_sums", model=replace(sums().model, path=str(_TINY_DENSE)))


def pretrained_sums() -> Run:
    """Returns a run of 32 updates on sums of two numbers, by SmolLM2-135M on one process; it needs no warm start."""
    run = load_recipe(str(_SMOLLM2))
    assert run.evaluation is not None
    return replace(
        run,
        name="pretrained_sums",
        parallel=Parallel(),
        num_updates=32,
        checkpoint_every=0,
        evaluation=replace(run.evaluation, sets={"additions": run.evaluation.sets["sums"]}, every=8),
    )


def pretrained_sums_on_gpu() -> Run:
    """Returns the run of `pretrained_sums` under another name, because results of a GPU are kept apart."""
    return replace(pretrained_sums(), name="pretrained_sums_on_gpu")


def warm_sums() -> Run:
    """Returns the warm start of `sums` alone: its one update has a learning rate of 0."""
    return _warm(sums())


def warm_long_sums() -> Run:
    """Returns the warm start of `long_sums` alone."""
    return _warm(long_sums(), prompts=_long_additions(size=8000, wrong_fraction=0.5))


def warm_dense_sums() -> Run:
    """Returns the warm start of `dense_sums` alone."""
    return _warm(dense_sums())


def _warm(run: Run, **changes: Any) -> Run:
    """Returns the quickstart's warm start, with changes, of the run's model."""
    start = load_recipe(str(_TINY_MOE)).warm_start
    assert start is not None
    return replace(
        run,
        name="warm",
        warm_start=replace(start, **changes),
        num_updates=1,
        updates_per_sync=1,
        optimizer=Optimizer(lr=0.0),
    )


def _long_additions(**options: Any) -> Prompts:
    """Returns sums of four or five numbers up to 99."""
    return Prompts(source=f"{_LONG_SUMS}:rows", options=options, template="{question}", max_tokens=16)
