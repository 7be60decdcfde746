"""The choice of a recipe's lr* from the finished runs of its search (docs/study.md, "Learning rate")."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.study.collect import read_finished
from examples.study.grid import BEYOND, SWEEPS, folder_name
from megatron_sspo.errors import UserError

Areas = Mapping[float, Sequence[float]]  # learning rate -> the area under pass@1 by seed


def best(areas: Areas) -> float:
    """Returns the learning rate with the largest mean area."""
    return max(areas, key=lambda rate: math.fsum(areas[rate]) / len(areas[rate]))


def chosen(search: str, output: Path) -> float:
    """Returns lr*.

    Args:
        search: the sweep that chooses it.
        output: the folder of all sweeps.

    Raises:
        UserError: a run of the search is not finished.
    """
    areas = _read(search, output)
    if _is_unfinished(search, areas) or extension(search, output) is not None:
        raise UserError(
            f"lr* of {SWEEPS[search].recipe} is not known, because {output / folder_name(search)} lacks finished runs: "
            f'run it to its end with --only "{search}"'
        )
    return best(areas)


def extension(search: str, output: Path) -> float | None:
    """Returns the learning rate that the search still has to try because its best one is at an end of the list."""
    areas = _read(search, output)
    if _is_unfinished(search, areas):
        return None
    listed = {rate: areas[rate] for rate in SWEEPS[search].rates}
    added = BEYOND.get(best(listed))
    return added if added is not None and _lacks_seeds(search, areas, [added]) else None


def _is_unfinished(search: str, areas: Areas) -> bool:
    return _lacks_seeds(search, areas, SWEEPS[search].rates)


def _lacks_seeds(search: str, areas: Areas, rates: Sequence[float]) -> bool:
    return any(len(areas.get(rate, ())) < SWEEPS[search].seeds for rate in rates)


def _read(search: str, output: Path) -> Areas:
    areas: dict[float, list[float]] = {}
    for [run], *_ in read_finished(output / folder_name(search), search, SWEEPS[search]).values():
        areas.setdefault(float(run["lr"]), []).append(float(run["area"]))
    return areas
