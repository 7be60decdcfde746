"""A sweep's folder: `sweep.json`, and a folder for each run. The runs' folders themselves show their progress."""

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from megatron_sspo.checkpoint.state import list_checkpoints
from megatron_sspo.errors import UserError, os_errors_as_user_errors, short_repr
from megatron_sspo.files.reading import read_json
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.sweep.grid import Cell, Sweep
from megatron_sspo.sweep.values import Value

FILE, LOGS = "sweep.json", "logs"
_ROWS_END = 1 << 20  # bytes of a metrics file in which its last row lies


@dataclass(frozen=True)
class Status:
    """The progress of a run.

    Attributes:
        state: "new" if its folder has no config.json, "finished", or otherwise "begun": it can be resumed.
        update: the newest update that has a row of metrics.
    """

    state: Literal["new", "begun", "finished"]
    update: int = 0


def is_sweep(folder: Path) -> bool:
    """Returns whether this is the folder of a sweep."""
    return (folder / FILE).is_file()


def read_sweep(folder: Path) -> Sweep:
    """Reads the sweep of a folder.

    Raises:
        UserError: the folder has no sweep.json, or the file cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        raise UserError(f"{folder} is not the folder of a sweep: it has no {FILE}")
    content = read_json(path, remedy="restore the file")
    try:
        sweep = Sweep(
            recipe=str(content["recipe"]),
            assignments=tuple(str(assignment) for assignment in content["set"]),
            vary={name: [_value(value) for value in values] for name, values in content["vary"].items()},
            seeds=int(content["seeds"]),
            order=[str(name) for name in content["runs"]],
            run=dict(content["config"]),
        )
        num_runs = sweep.seeds * math.prod(map(len, sweep.vary.values()))
        is_whole = num_runs == len(sweep.order) and [cell.name for cell in sweep.cells()] == sweep.order
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}): restore the file") from error
    if not is_whole:
        raise UserError(f"{path} lists runs that do not follow from its values and seeds: restore the file")
    return sweep


def _value(fields: dict[str, Any]) -> Value:
    if not all(isinstance(text, str) for text in fields.values()):
        raise ValueError(f"the value {short_repr(fields)} is not text")
    return Value(**fields)


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Writes sweep.json, and makes the folder of the runs' output."""
    content = {
        "recipe": sweep.recipe,
        "set": list(sweep.assignments),
        "vary": {name: [asdict(value) for value in values] for name, values in sweep.vary.items()},
        "seeds": sweep.seeds,
        "runs": list(sweep.order),
        "config": sweep.run,
    }
    with os_errors_as_user_errors(folder):
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, json.dumps(content, indent=1) + "\n")


def load_existing_or_new(folder: Path, new: Sweep) -> Sweep:
    """Returns the folder's sweep, with the new recipe path and overrides, or the new sweep if the folder has none.

    Raises:
        UserError: the folder holds a sweep of another recipe, or is the folder of a run, or a file.
    """
    if not is_sweep(folder):
        place = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
        if not place.is_dir():
            raise UserError(f"{place} is not a folder, which a sweep needs: choose another with --output")
        if (folder / "config.json").exists():
            raise UserError(f"{folder} is the folder of a run: choose another with --output")
        return new
    from megatron_sspo.run_folder.resuming import differences

    known = read_sweep(folder)
    if lines := differences(known.run, new.run):
        raise UserError(
            f"{folder} holds a sweep of another recipe, in which {_describe_change(lines[0])}: choose another "
            "--output, or start the same recipe with the same --set and --start-from"
        )
    return replace(known, recipe=new.recipe, assignments=new.assignments)


def status(folder: Path) -> Status:
    """Returns the status of a run's folder. If a file cannot be read, it is "begun": resuming then gives the error."""
    if not (folder / "config.json").exists():
        return Status("new")
    try:
        config = read_json(folder / "config.json")
        update = _last_update(folder / metrics_files.METRICS)
        is_evaluated = config.get("evaluation") is None or _last_update(folder / metrics_files.EVALUATIONS) == update
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return Status("begun")
    has_model = (folder / "model" / "config.json").exists()  # a model gets its name when it is complete
    is_finished = has_model and is_evaluated and update == config.get("num_updates")
    return Status("finished" if is_finished else "begun", update)


def newest_checkpoint(folder: Path) -> str:
    """Returns the name of a run's newest checkpoint; "" if there is none."""
    found = list_checkpoints(folder / "checkpoints")
    return found[-1].name if found else ""


def train_arguments(folder: Path, sweep: Sweep, cell: Cell) -> list[str]:
    """Returns the arguments of `megatron-sspo` that start or resume the run."""
    place = folder / cell.name
    sets = [*sweep.assignments_of(cell), f"output={folder}", f"name={cell.name}"]
    resume = ["--resume", str(place)] if (place / "config.json").exists() else []
    return ["train", sweep.recipe, *(part for assignment in sets for part in ("--set", assignment)), *resume]


def _last_update(path: Path) -> int:
    """Returns the update of the last complete row of a metrics file, which may be long; 0 if there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _ROWS_END))
        lines = file.read().split(b"\n")[:-1]  # text after the last newline is not a complete row
    return int(json.loads(lines[-1])["update"]) if lines else 0


def _describe_change(line: str) -> str:
    """Changes "lr is 2, and was 1" to "lr was 1, and is 2 here"."""
    now, _, before = line.rpartition(", and was ")
    name, _, value = now.partition(" is ")
    return f"{name} was {before}, and is {value} here"
