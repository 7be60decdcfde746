"""From a run's configuration to its engine."""

import inspect
from pathlib import Path
from typing import Any

from megatron_sspo.resolve import call_with_options, check_options, resolve
from megatron_sspo.rollout.engine import RolloutEngine
from megatron_sspo.run import Run


def check_engine(run: Run) -> None:
    """Raises UserError where there is no such engine, or it has no such option."""
    check_options(_builder(run), run.rollouts.options, _what(run), num_given=1)


def open_engine(run: Run, model_path: Path, folder: Path) -> RolloutEngine:
    """The engine, without weights.

    Args:
        model_path: config.json and tokenizer.
        folder: of the run, for an engine that has something to leave.

    Raises:
        UserError: what `check_engine` and the engine raise.
    """
    build = _builder(run)
    known = inspect.signature(build).parameters
    options = dict(run.rollouts.options)
    if "run_folder" in known:
        options["run_folder"] = folder
    if "routes" in known and run.routing_replay == "R3":
        options.setdefault("routes", True)
    return call_with_options(build, options, _what(run), model_path)


def _builder(run: Run) -> Any:
    return resolve("rollout", run.rollouts.engine, "engine")


def _what(run: Run) -> str:
    return f"the engine {run.rollouts.engine!r}"
