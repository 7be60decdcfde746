"""Folders of runs with chosen metrics, as a training run leaves them, and a trainer that checks nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sspo_lab.folder import write_sweep
from sspo_lab.grid import Sweep
from sspo_lab.values import read_vary


def make_sweep(folder: Path, *vary: str, seeds: int = 1) -> Sweep:
    """Makes the folder of a sweep without runs."""
    sweep = Sweep(recipe="recipe.py", run={"class": "Run", "name": "run"}).extended(dict(map(read_vary, vary)), seeds)
    write_sweep(folder, sweep)
    return sweep


def make_run(
    folder: Path, values: Sequence[float], *, num_updates: int | None = None, has_model: bool = True, **more: float
) -> None:
    """Makes a run's folder with pass@1 of one set before each update and at the end; by default finished."""
    folder.mkdir(parents=True)
    updates = len(values) - 1
    evaluation = {"class": "Evaluation"}
    config = {"class": "Run", "num_updates": updates if num_updates is None else num_updates, "evaluation": evaluation}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"update": update, "sums/pass@1": value, **more} for update, value in enumerate(values)]
    append(folder, *rows, name="evaluations.jsonl")
    append(folder, *({"update": update, "reward/mean": update / 10} for update in range(1, updates + 1)))
    if has_model:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")


def append(folder: Path, *rows: Any, name: str = "metrics.jsonl") -> None:
    """Appends rows as a run does."""
    with (folder / name).open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
