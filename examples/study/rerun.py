"""Compares cells that were made again with the study's: `python -m examples.study.rerun runs/again`.

The cells are made by `examples.study.run` with another --output. Where they begin at other warm starts, because another
processor rounds otherwise, the seeds are other seeds in effect. So the mean over k of them is compared with the
interval in which the mean of k further seeds lies with 95 %: m ± t s √(1/n + 1/k), where m and s are the mean and the
standard deviation of the study's n seeds, and t is the quantile of the t-distribution with n − 1 degrees of freedom.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples.study.collect import RESULTS, read_finished
from examples.study.data import Cell, finals, read_study
from examples.study.grid import SWEEPS, folder_name
from examples.study.statistics import CONFIDENCE, Estimate, mean
from examples.study.text import interval, number, table

HEADER = ("objective", "cell", "seeds", "final", "the study (95 %)", "as many further seeds (95 %)", "within")


def main(arguments: Sequence[str]) -> int:
    """Prints a row for each cell of a folder; returns 1 if one is not within its interval, and 2 without such cells."""
    folder = Path(arguments[0] if arguments else "runs/again")
    rows = compare(folder)
    if not rows:
        print(f"error: {folder} has no finished run of a cell that the study has", file=sys.stderr)
        return 2
    print(table(HEADER, rows))
    return int(any(row[-1] != "yes" for row in rows))


def compare(folder: Path) -> list[list[str]]:
    """Returns a row of `HEADER` for each cell of the folder's sweeps that the study has, too."""
    study = read_study(RESULTS)
    again: dict[tuple[str, str, int, float], list[float]] = {}
    for name, sweep in SWEEPS.items():
        for [row], *_ in read_finished(folder / folder_name(name), name, sweep).values():
            key = (row["objective"], sweep.recipe, int(row["mu"]), float(row["lr"]))
            again.setdefault(key, []).append(float(row["final"]))
    rows = []
    for (objective, recipe, mu, lr), values in again.items():
        known = list(finals(study.runs(objective, Cell(mu=mu, lr=lr, recipe=recipe))).values())
        if not known:
            continue
        expected = further(known, len(values))
        found = float(np.mean(values))
        is_within = expected.low is not None and expected.high is not None and expected.low <= found <= expected.high
        rows.append(
            [
                objective,
                f"{recipe}, μ = {mu}, {lr:.3g}",
                str(len(values)),
                number(found),
                interval(mean(known)),
                interval(expected),
                "yes" if is_within else "no",
            ]
        )
    return rows


def further(values: Sequence[float], count: int) -> Estimate:
    """Returns the mean of the values with the interval for the mean of `count` further ones; without, for one value."""
    from scipy.stats import t

    middle = float(np.mean(values))
    if len(values) < 2:
        return Estimate(middle)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    width = quantile * float(np.std(values, ddof=1)) * (1 / len(values) + 1 / count) ** 0.5
    return Estimate(middle, middle - width, middle + width)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
