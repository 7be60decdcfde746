"""The choice of lr* from a search, and the commands that the study's driver makes from it."""

from pathlib import Path
from typing import Any

import pytest

from examples.study import rates
from examples.study.grid import BEYOND, SEARCHED_RATES

SEARCH = "search long sums"


@pytest.fixture
def finished(monkeypatch) -> dict[tuple[float, int], float]:
    """The area by (learning rate, seed) of the finished runs of every search, which a test fills."""
    areas: dict[tuple[float, int], float] = {}

    def read_finished(place: Path, name: str, sweep: Any) -> dict[str, Any]:
        return {str(key): [[{"lr": f"{key[0]:.3g}", "area": f"{area:.4g}"}], [], []] for key, area in areas.items()}

    monkeypatch.setattr(rates, "read_finished", read_finished)
    return areas


def fill(areas: dict[tuple[float, int], float], best: float) -> None:
    """Makes all runs of the list, of which the ones at `best` are the best only on average."""
    for rate in SEARCHED_RATES:
        areas |= {(rate, seed): (0.9, 0.9, 0.4)[seed] if rate == best else 0.7 for seed in range(3)}


def test_the_best_mean_area_of_a_finished_search_is_chosen(finished) -> None:
    fill(finished, best=3e-4)
    assert rates.chosen(SEARCH, Path()) == 3e-4
    del finished[1e-4, 2]
    assert rates.extension(SEARCH, Path()) is None
    with pytest.raises(rates.UserError, match="lr\\* of long_sums is not known, because search-long-sums lacks"):
        rates.chosen(SEARCH, Path())


@pytest.mark.parametrize("end", BEYOND)
def test_a_list_is_extended_by_one_value_at_its_better_end(end, finished) -> None:
    fill(finished, best=end)
    assert rates.extension(SEARCH, Path()) == BEYOND[end]
    with pytest.raises(rates.UserError, match="lacks finished runs"):
        rates.chosen(SEARCH, Path())
    finished |= {(BEYOND[end], seed): 0.8 for seed in range(3)}
    assert rates.extension(SEARCH, Path()) is None  # one value, although it is at an end now
    assert rates.chosen(SEARCH, Path()) == BEYOND[end]
