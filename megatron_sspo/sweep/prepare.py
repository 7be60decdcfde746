"""Builds a sweep from the command line's arguments and checks the configuration of every run."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.errors import UserError
from megatron_sspo.recipe import absolute_name, load_recipe
from megatron_sspo.run import Run
from megatron_sspo.sweep.folder import load_existing_or_new
from megatron_sspo.sweep.grid import PATH, SEED, Cell, Sweep
from megatron_sspo.sweep.values import read_vary

_MAX_RUNS = 100_000  # the configuration of each is checked at the start


@dataclass(frozen=True)
class Prepared:
    """A sweep that a command continues or begins.

    Attributes:
        folder: the folder of the sweep.
        sweep: the sweep with the command's values and seeds.
        runs: the configuration of each run by its name.
        others: the values and seeds that an earlier command gave, and this one did not.
    """

    folder: Path
    sweep: Sweep
    runs: dict[str, Run]
    others: Sequence[str] = ()


def prepare(
    recipe: str,
    assignments: Sequence[str],
    vary: Sequence[str],
    seeds: int,
    *,
    output: Path | None = None,
    start_from: Path | None = None,
) -> Prepared:
    """Adds the requested values and seeds to the folder's sweep, and checks every configuration. Writes nothing.

    Args:
        recipe: the recipe's name as for `megatron-sspo train`.
        assignments: overrides (`--set`) of all runs.
        vary: texts `FIELD=[value, ...]`.
        seeds: the number of seeds.
        output: the sweep's folder; None: the recipe's own folder with "-sweep" appended.
        start_from: the folder of a run or model, whose weights and tokenizer the runs start from; `{seed}` in it stands
            for the seed of each run.

    Raises:
        UserError: an argument cannot be parsed, a value is wrong, or the folder holds another sweep.
    """
    if seeds < 1:
        raise UserError(f"--seeds is {seeds}: a sweep has one seed or more")
    if any(assignment.partition("=")[0].strip() == "seed" for assignment in assignments):
        raise UserError("--set seed is given, but each run of a sweep has its own seed: leave it out, and set --seeds")
    found = [read_vary(text) for text in vary]
    fields = [name for name, _ in found]
    if twice := next((name for name in fields if fields.count(name) > 1), None):
        raise UserError(f"--vary {twice} is given twice: list all of its values in one")
    for name in (assignment.partition("=")[0].strip() for assignment in assignments):
        if replaced := next((field for field in fields if f"{name}.".startswith(f"{field}.")), None):
            raise UserError(
                f"--set {name} is given with --vary {replaced}, whose values replace it in every run: leave one "
                "of them out"
            )
    if start_from:
        _check_start_from_sets_alone({"--set": assignments, "--vary": vary})
    num_runs = seeds * math.prod(len(values) for _, values in found)
    if num_runs > _MAX_RUNS:
        raise UserError(f"the sweep has {num_runs:,} runs, more than {_MAX_RUNS:,}: give fewer values or --seeds")
    assignments = (*assignments, *(_start_from_overrides_of_seeds(start_from, seeds) if start_from else []))
    base = load_recipe(recipe, assignments)
    folder = (output or Path(base.output) / f"{base.name}-sweep").absolute()
    new = Sweep(recipe=absolute_name(recipe), assignments=assignments, run=config_to_json(base))
    sweep = load_existing_or_new(folder, new).extended(dict(found), seeds)
    return Prepared(folder, sweep, _checked_runs(folder, sweep), sweep.others(dict(found), seeds))


def _check_start_from_sets_alone(given: Mapping[str, Sequence[str]]) -> None:
    """Raises UserError if an option sets the model too, as `start_from_overrides` does: one of them would be lost."""
    for option, texts in given.items():
        for name in (text.partition("=")[0].strip() for text in texts):
            if name in ("model.path", "model.init"):
                raise UserError(f"{option} {name} is given with --start-from, which sets it too: leave one of them out")


def _start_from_overrides_of_seeds(folder: Path, seeds: int) -> list[str]:
    """Returns the assignments of `start_from_overrides`, after it has accepted the folder of each seed.

    Raises:
        UserError: a folder is refused, or some are folders of runs and others of models.
    """
    path = str(folder.absolute())
    found = {seed: start_from_overrides(Path(path.replace(SEED, str(seed)))) for seed in range(seeds)}
    below = found[0][0].removeprefix(PATH + path.replace(SEED, "0"))
    for seed, (model, *_) in found.items():
        if model != PATH + path.replace(SEED, str(seed)) + below:
            raise UserError(
                f"{folder} with seed 0 is not the same kind of folder as with seed {seed}: name runs or models"
            )
    return [PATH + path + below, *found[0][1:]]


def start_from_overrides(folder: Path) -> list[str]:
    """Returns overrides for a run that starts from another run's weights, and so needs no warm start of its own.

    Args:
        folder: the folder of a finished run, or a Hugging Face folder.

    Raises:
        UserError: the folder is neither of these.
    """
    if (folder / "metrics.jsonl").exists() or (folder / "checkpoints").exists():
        if not (folder / "model" / "config.json").exists():
            raise UserError(f"{folder} is a run that has no model yet: finish it with --resume {folder} first")
        folder = folder / "model"
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} has no config.json: name a finished run, or a Hugging Face folder, to start from")
    return [f"{PATH}{folder.absolute()}", "model.init=pretrained", "warm_start=none"]


def _checked_runs(folder: Path, sweep: Sweep) -> dict[str, Run]:
    """Returns the configuration of each run by its name.

    Raises:
        UserError: a value is wrong, or two runs are the same.
    """
    runs: dict[str, Run] = {}
    seen: dict[str, Cell] = {}
    for cell in sweep.cells():
        sets = [*sweep.assignments_of(cell), f"output={folder}", f"name={cell.name}"]
        run = runs[cell.name] = load_recipe(sweep.recipe, sets)
        described = {key: value for key, value in config_to_json(run).items() if key != "name"}
        other = seen.setdefault(json.dumps(described, sort_keys=True), cell)
        if other is not cell:
            raise UserError(
                f"the runs {other.name} and {cell.name} are the same: leave out one of the values in which their "
                "names differ"
            )
    return runs
