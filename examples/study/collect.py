"""Summarizes the study's finished runs in small files: `python -m examples.study.collect [runs/study]`.

    results/runs.csv          a row a run: its cell and seed, pass@1 before and after, and the area under its curve
    results/evaluations.csv   a row an evaluation: run, update, pass@1
    results/metrics.csv.gz    a row an update: run, update, and the numbers of `METRICS`

Runs of an earlier collection that are no longer in the folder are kept, so that partial results add up. Objectives are
compared in pairs of runs of one seed, which have to begin at the same warm start. The warm start depends on the
processor's rounding, so an earlier run is left out if a run in the folder with its seed began at another pass@1.
"""

import csv
import gzip
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.study.grid import ALONE, SWEEPS, Sweep, folder_name
from megatron_sspo.files.reading import read_json
from megatron_sspo.run_folder import metrics_files
from sspo_lab.folder import is_sweep, read_sweep, status
from sspo_lab.results import area

RESULTS = Path(__file__).parent / "results"
METRICS = {
    "reward": "reward/mean",
    "entropy": "policy/entropy",
    "kl_old": "policy/kl_old",
    "grad_norm": "policy/grad_norm",
    "learning_rate": "policy/learning_rate",
    "against": "log_ratio/against_advantage",
    "below_half": "token_weight/below_half",
    "below_half_positive_above": "token_weight/below_half/positive_above",
    "below_half_positive_below": "token_weight/below_half/positive_below",
    "below_half_negative_above": "token_weight/below_half/negative_above",
    "below_half_negative_below": "token_weight/below_half/negative_below",
    "effective_sample_size": "sequence_weight/effective_sample_size",
    "response_tokens": "response/tokens_mean",
}
_FILES = ("runs.csv", "evaluations.csv", "metrics.csv.gz")

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Reads every finished run of a folder, and writes the three files."""
    kept: dict[str, list[list[Row]]] = {}
    for index, name in enumerate(_FILES):
        for row in read_rows(RESULTS / name):
            kept.setdefault(row["run"], [[], [], []])[index].append(row)
    folder = Path(arguments[0] if arguments else "runs/study")
    found: dict[str, list[list[Row]]] = {}
    for name, sweep in SWEEPS.items():
        found |= read_finished(folder / folder_name(name), name, sweep)
    runs = _with_one_start(kept, found) | found
    if len(kept | found) > len(runs):
        print(
            f"{len(kept | found) - len(runs)} earlier runs began at another warm start of their seed, and are left out"
        )
    RESULTS.mkdir(exist_ok=True)
    for index, name in enumerate(_FILES):
        write_rows(RESULTS / name, (row for run in sorted(runs) for row in runs[run][index]))
    print(f"{len(runs)} runs in {RESULTS}")
    return 0


def _with_one_start(kept: Mapping[str, list[list[Row]]], found: Mapping[str, list[list[Row]]]) -> dict[str, Any]:
    """Returns the earlier runs without those whose seed has another start in the runs that were found.

    Runs of a search and of a cell that is only described stay: they are compared with no other sweep.
    """
    starts = {
        (row["recipe"], str(row["seed"])): float(row["first"])
        for [row], *_ in found.values()
        if row["sweep"] not in ALONE
    }

    def fits(row: Row) -> bool:
        return row["sweep"] in ALONE or float(row["first"]) == starts.get(
            (row["recipe"], row["seed"]), float(row["first"])
        )

    return {run: rows for run, rows in kept.items() if all(map(fits, rows[0]))}


def read_finished(place: Path, name: str, sweep: Sweep) -> dict[str, list[list[Row]]]:
    """Returns the rows of the three files of each finished run of a sweep; none if there is no such folder."""
    found: dict[str, list[list[Row]]] = {}
    for cell in read_sweep(place).cells() if is_sweep(place) else ():
        if status(place / cell.name).state == "finished":
            row = {"sweep": name, "recipe": sweep.recipe, "objective": cell.labels["objective"]}
            run, rows = _read(place / cell.name, row)
            found[run] = rows
    return found


def _read(folder: Path, row: Row) -> tuple[str, list[list[Row]]]:
    """Returns the name of a run and its rows of the three files."""
    config = read_json(folder / "config.json")
    mu, rate, seed = config["updates_per_sync"], config["optimizer"]["lr"], config["seed"]
    run = f"{row['sweep']}/{row['objective']}/{mu}/{rate:.3g}/{seed}"
    curve = [
        (evaluation["update"], evaluation["additions/pass@1"])
        for evaluation in metrics_files.read(folder / metrics_files.EVALUATIONS)
    ]
    numbers = {
        "first": curve[0][1],
        "final": curve[-1][1],
        "area": _short(area(curve)),
    }
    known = {"mu": mu, "lr": f"{rate:.3g}", "seed": seed}
    evaluations = [{"run": run, "update": update, "pass@1": value} for update, value in curve]
    metrics = [
        {"run": run, "update": int(found["update"]), **{name: _short(found[key]) for name, key in METRICS.items()}}
        for found in metrics_files.read(folder / metrics_files.METRICS)
    ]
    return run, [[{"run": run, **row, **known, **numbers}], evaluations, metrics]


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a CSV file, compressed or not; none if there is no file."""
    if not path.exists():
        return []
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return list(csv.DictReader(io.StringIO(content.decode())))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a CSV file; the same rows give the same bytes."""
    found = list(rows)
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in found for name in row))  # an earlier collection may have fewer
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    content = text.getvalue().encode()
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    temporary.rename(path)


def _short(value: float) -> str:
    return f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
