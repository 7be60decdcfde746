"""The choice of lr* from a search, and the commands that the study's driver makes from it."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.study import rates, run
from examples.study.grid import BEYOND, SEARCHED_RATES

SEARCH = "search long sums"
HIGHEST = SEARCHED_RATES[-1]


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


def test_the_best_mean_area_is_chosen(finished) -> None:
    fill(finished, best=3e-4)
    assert rates.chosen(SEARCH, Path()) == 3e-4
    assert rates.extension(SEARCH, Path()) is None


def test_a_search_that_is_not_finished_chooses_nothing(finished) -> None:
    fill(finished, best=3e-4)
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


def test_the_driver_extends_a_search_and_takes_its_choice(finished, monkeypatch) -> None:
    made: list[tuple[str, str, str]] = []  # (recipe, seeds, learning rates)

    def pretend(line: list[str], check: bool) -> SimpleNamespace:
        found = [part.removeprefix("optimizer.lr=") for part in line if part.startswith("optimizer.lr=")]
        made.append((line[4].rpartition(":")[2], line[line.index("--seeds") + 1], "".join(found)))
        if found and not finished:
            fill(finished, best=HIGHEST)
        elif found == ["[0.01]"]:
            finished.update({(0.01, seed): 0.5 for seed in range(3)})
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", pretend)
    assert run.main(["--only", "search long sums, long sums", "--seeds", "2"]) == 0
    listed = "[3e-05, 0.0001, 0.0003, 0.001, 0.003]"
    assert made == [
        ("warm_long_sums", "3", ""),
        ("long_sums", "3", listed),
        ("long_sums", "3", "[0.01]"),
        ("warm_long_sums", "2", ""),
        ("long_sums", "2", "[0.003]"),
    ]


def test_cells_without_a_search_are_refused(tmp_path, capsys) -> None:
    assert run.main(["--only", "dense sums", "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: lr* of dense_sums is not known, because {tmp_path}/search-dense-sums lacks finished runs: run it to "
        'its end with --only "search dense sums"\n'
    )


def test_cells_are_made_again_by_objective(tmp_path, monkeypatch, capsys) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda line, check: made.append(line) or SimpleNamespace(returncode=0))
    chosen = ["--objective", "AtanLog", "--objective", "GRPO", "--seeds", "4", "--output", str(tmp_path)]
    assert run.main(["--only", "staleness,gates", *chosen]) == 0
    assert [line[4].rpartition(":")[2] for line in made] == ["warm_sums", "sums"]  # the sweep "gates" has neither
    assert "objective={'GRPO': grpo(), 'AtanLog': sspo()}" in made[1]
    with pytest.raises(SystemExit):
        run.main(["--only", "staleness", "--objective", "Nothing"])
    assert "none of these sweeps has an objective 'Nothing'" in capsys.readouterr().err
