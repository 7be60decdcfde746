"""A sweep's folder: `sweep.json`, and a folder for each run, whose files say how far the run is."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sspo_lab.grid import Cell, Sweep
from sspo_lab.trainer import LabError
from sspo_lab.values import Value

FILE, LOGS = "sweep.json", "logs"
METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"  # in a run's folder
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
    """Reads the sweep of a folder. Raises LabError if sweep.json cannot be read."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        sweep = Sweep(
            recipe=content["recipe"],
            assignments=tuple(content["set"]),
            vary={name: [Value(**value) for value in values] for name, values in content["vary"].items()},
            seeds=content["seeds"],
            order=content["runs"],
            run=content["config"],
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LabError(f"{folder / FILE} is damaged ({error!r}): restore the file") from error
    if [cell.name for cell in sweep.cells()] != sweep.order:
        raise LabError(f"{folder / FILE} lists runs that do not follow from its values and seeds: restore the file")
    return sweep


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
    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    partial = folder / f".{FILE}.partial"
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, folder / FILE)


def load_existing_or_new(folder: Path, new: Sweep) -> Sweep:
    """Returns the folder's sweep, with the new recipe path and overrides, or the new sweep if the folder has none.

    Raises LabError if the folder holds a sweep of another recipe, or is the folder of a run.
    """
    if (folder / "config.json").exists():
        raise LabError(f"{folder} is the folder of a run: choose another with --output")
    if not is_sweep(folder):
        return new
    known = read_sweep(folder)
    before, now = flat(known.run), flat(new.run)
    for name in {**before, **now}:
        if before.get(name) != now.get(name) and name not in ("name", "output"):
            raise LabError(
                f"{folder} holds a sweep of another recipe, in which {name} was {before.get(name)}, and is "
                f"{now.get(name)} here: choose another --output, or start the same recipe with the same --set and "
                "--start-from"
            )
    return replace(known, recipe=new.recipe, assignments=new.assignments)


def flat(config: Any, name: str = "") -> dict[str, Any]:
    """Returns the values of a nested configuration by their path, such as "optimizer.lr"."""
    if not isinstance(config, Mapping) or not config:
        return {name: config}
    dot = f"{name}." if name else ""
    return {path: found for key, value in config.items() for path, found in flat(value, f"{dot}{key}").items()}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context in which no other process can lock the folder, which is made if it is missing.

    Raises LabError if another process has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".run.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise LabError(
                f"{folder} is in use by a sweep, {file.read()}: wait until it ends, stop it, or choose another folder "
                "with --output"
            ) from None
        except OSError:  # the file system has no flock
            pass
        file.truncate(0)
        print(f"process {os.getpid()} on {socket.gethostname()}", end="", file=file, flush=True)
        yield


def status(folder: Path) -> Status:
    """Returns the status of a run's folder. If a file cannot be read, it is "begun": resuming then gives the error."""
    if not (folder / "config.json").exists():
        return Status("new")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        update = _last_update(folder / METRICS)
        is_evaluated = config.get("evaluation") is None or _last_update(folder / EVALUATIONS) == update
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Status("begun")
    has_model = (folder / "model" / "config.json").exists()  # a model gets its name when it is complete
    is_finished = has_model and is_evaluated and update == config.get("num_updates")
    return Status("finished" if is_finished else "begun", update)


def newest_checkpoint(folder: Path) -> str:
    """Returns the name of a run's newest checkpoint; "" if there is none."""
    found = [path.name for path in folder.glob("checkpoints/update-*") if path.name[7:].isdecimal()]
    return max(found, key=lambda name: (len(name), name), default="")  # update-1000000 has more digits


def train_arguments(folder: Path, sweep: Sweep, cell: Cell) -> list[str]:
    """Returns the arguments of `megatron-sspo` that start or resume the run."""
    sets = [*sweep.assignments_of(cell), f"output={folder}", f"name={cell.name}"]
    resume = ["--resume", str(folder / cell.name)] if (folder / cell.name / "config.json").exists() else []
    return ["train", sweep.recipe, *(part for assignment in sets for part in ("--set", assignment)), *resume]


def _last_update(path: Path) -> int:
    """Returns the update of the last complete row of a metrics file, which may be long; 0 if there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _ROWS_END))
        lines = file.read().split(b"\n")[:-1]  # text after the last newline is not a complete row
    return int(json.loads(lines[-1])["update"]) if lines else 0
