"""Checks and opens the engine of a run's configuration."""

import inspect
from pathlib import Path
from typing import Any, get_type_hints

from megatron_sspo.config.resolve import call_with_options, check_members, check_options, resolve
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import RolloutEngine
from megatron_sspo.run import Rollouts, Run


def check_engine(run: Run) -> None:
    """Checks a run's engine before it is opened.

    Raises:
        UserError: there is no engine of that name, it lacks an option, or it does not support what the run needs.
    """
    build = _builder(run)
    check_options(build, run.rollouts.options, _description(run), num_given=1)
    engine = get_type_hints(build).get("return") if inspect.isfunction(build) else build  # the class, if annotated
    replicated = getattr(engine, "replicated", False) is True
    check_async_support(run.rollouts, replicated=replicated)


def check_async_support(rollouts: Rollouts, *, replicated: bool) -> None:
    """Raises UserError if the run needs generation during training and the engine does not support it."""
    if replicated and (rollouts.max_staleness or rollouts.oversampling > 1):
        what = "max_staleness" if rollouts.max_staleness else "oversampling"
        raise UserError(
            f"rollouts.{what} is {getattr(rollouts, what)}, and the engine {rollouts.engine!r} generates inside the "
            "trainer and cannot run ahead: set it to its default, or choose an engine of servers"
        )
    if rollouts.max_staleness and rollouts.takes_turns:
        raise UserError(
            f"rollouts.max_staleness is {rollouts.max_staleness}, so that servers generate while the trainer "
            "works, but rollouts.options.release_memory releases their memory meanwhile: choose one"
        )


def open_engine(run: Run, model_path: Path, folder: Path) -> RolloutEngine:
    """Opens the engine, without weights.

    Raises:
        UserError: the engine fails a check of `check_engine`, or raises an error of its own.
    """
    build = _builder(run)
    known = inspect.signature(build).parameters
    options = dict(run.rollouts.options)
    of_run = {
        "run_folder": folder,
        "model_dtype": run.model.dtype,
        "routes": True if run.routing_replay == "R3" else None,
        "adapters": run.lora,
    }
    options = {name: value for name, value in of_run.items() if name in known and value is not None} | options
    engine = call_with_options(build, options, _description(run), model_path)
    check_members(engine, RolloutEngine, _description(run))
    return engine


def _builder(run: Run) -> Any:
    return resolve("rollout/engines", run.rollouts.engine, "engine")


def _description(run: Run) -> str:
    return f"the engine {run.rollouts.engine!r}"
