"""Folders of runs with chosen metrics, as a training run leaves them."""

import json
from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.sweep.folder import write_sweep
from megatron_sspo.sweep.grid import Sweep
from megatron_sspo.sweep.values import read_vary


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
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"update": update, "reward/mean": update / 10} for update in range(1, updates + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if has_model:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
