"""The report of the study (docs/study.md) on the collected results, and its statistics."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import bootstrap, mannwhitneyu

from examples.study import collect, rerun, statistics
from examples.study.collect import write_rows
from examples.study.figures import DRAWINGS
from examples.study.report import main

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_collected_results(tmp_path) -> None:
    """The third line, which names the commits of the runs, is written by hand."""
    assert main(["--output", str(tmp_path)]) == 0
    found, expected = (
        (folder / "verdicts.md").read_text(encoding="utf-8").splitlines()
        for folder in (tmp_path, ROOT / "docs" / "study")
    )
    assert found[:2] + found[3:] == expected[:2] + expected[3:]
    assert len(list(tmp_path.glob("*.png"))) == len(DRAWINGS)


def test_results_that_are_missing_are_named_and_no_error(tmp_path) -> None:
    runs = collect.read_rows(collect.RESULTS / "runs.csv")
    (tmp_path / "few").mkdir()
    write_rows(tmp_path / "few" / "runs.csv", [row for row in runs if row["sweep"] in ("search", "mild")])
    assert main(["--results", str(tmp_path / "few"), "--output", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page" / "verdicts.md").read_text(encoding="utf-8")
    assert "Not run, or not collected: " in text and "Figures that are not drawn:" in text
    assert "| a. Do two-sided gates collapse under staleness where one-sided ones hold? | not run" in text


@pytest.mark.parametrize(
    ("sweep", "first", "is_kept"),
    [("mild", 0.5, True), ("mild", 0.4, False), ("search", 0.4, True), ("map 16", 0.4, True), ("map 8", 0.4, False)],
)
def test_runs_of_a_seed_have_one_start(tmp_path, monkeypatch, sweep, first, is_kept) -> None:
    """A run of an earlier collection stays only if it began at the warm start of the runs that are found."""
    row = {"recipe": "sums", "objective": "GRPO", "mu": 8, "lr": "0.0001", "final": 0.9, "area": 0.8}
    earlier = {"run": "earlier", "sweep": sweep, **row, "seed": 1, "first": first}
    now = {"run": "now", "sweep": "staleness", **row, "seed": 1, "first": 0.5}
    write_rows(tmp_path / "runs.csv", [earlier])
    monkeypatch.setattr(collect, "RESULTS", tmp_path)
    monkeypatch.setattr(collect, "read_finished", lambda *_: {"now": [[now], [], []]})
    assert collect.main([str(tmp_path)]) == 0
    names = [found["run"] for found in collect.read_rows(tmp_path / "runs.csv")]
    assert names == [*(["earlier"] if is_kept else []), "now"]


def test_further_seeds_lie_within_their_interval() -> None:
    drawn = np.random.default_rng(0).normal(size=(2000, 12))
    found = [rerun.further(list(values[:8]), 4) for values in drawn]
    within = [one.low <= values[8:].mean() <= one.high for one, values in zip(found, drawn, strict=True)]
    assert np.mean(within) == pytest.approx(0.95, abs=0.015)


# --- statistics


def test_a_paired_difference_by_scipy() -> None:
    a = dict(enumerate([0.9, 0.8, 0.85, 0.7, 0.95, 0.6, 0.75, 0.8]))
    b = dict(enumerate([0.5, 0.82, 0.6, 0.65, 0.9, 0.61, 0.5, 0.4]))
    found = statistics.paired_difference(a, {**b, 99: 0.1} | {8: 0.0})
    values = np.array([a[seed] - b[seed] for seed in a])
    other = bootstrap((values,), np.mean, n_resamples=50_000, method="percentile", rng=np.random.default_rng(7))
    assert found is not None and found.seeds == 8 and found.p is not None
    assert found.estimate.mean == pytest.approx(values.mean())
    assert found.estimate.low == pytest.approx(other.confidence_interval.low, abs=0.005)
    assert found.estimate.high == pytest.approx(other.confidence_interval.high, abs=0.005)
    share = 2 * np.mean(other.bootstrap_distribution <= 0)
    assert found.p == pytest.approx(share, abs=0.004)
    same_runs = statistics.paired_difference(a, b)
    assert same_runs is not None
    u = mannwhitneyu(list(a.values()), list(b.values())).statistic
    assert same_runs.probability == pytest.approx(u / 64)


def test_pairs_are_of_one_seed() -> None:
    """A difference that is the same in every seed has no spread, however much the seeds differ."""
    found = statistics.paired_difference({0: 0.2, 1: 0.9, 2: 0.5}, {2: 0.4, 0: 0.1, 1: 0.8})
    assert found is not None
    assert found.estimate.low == pytest.approx(0.1) and found.estimate.high == pytest.approx(0.1)
    assert found.p == pytest.approx(2 / 10_001)
    assert statistics.paired_difference({0: 0.5}, {1: 0.5}) is None


def test_holm_and_wilson_by_hand() -> None:
    # sorted: 0.005 × 4, 0.01 × 3, 0.03 × 2, and 0.04 × 1, which is below the last
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    z, n, p = 1.959964, 8, 3 / 8
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    found = statistics.wilson(3, 8)
    assert (found.mean, found.low, found.high) == pytest.approx((p, centre - half, centre + half), abs=1e-6)


def test_a_nested_mean_has_the_spread_of_the_groups() -> None:
    """Values that differ by group only: the interval is that of the groups' means, not of six values."""
    found = statistics.nested_mean([[0.1] * 3, [0.5] * 3])
    assert (found.mean, found.low, found.high) == pytest.approx((0.3, 0.1, 0.5))
