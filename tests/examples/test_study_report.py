"""The report of the study (docs/study.md) on made-up results with a known answer."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap, mannwhitneyu, ttest_1samp

from examples.study import collect, objections, rerun, screening, statistics
from examples.study.collect import METRICS, write_rows
from examples.study.comparisons import compare, corrected
from examples.study.data import DENSE_SUMS, LONG_SUMS, PRETRAINED_SUMS, PRETRAINED_SUMS_ON_GPU, Study, read_study
from examples.study.figures import DRAWINGS, draw
from examples.study.forms import GATES, HARD, SOFT
from examples.study.grid import (
    BEYOND,
    CORE,
    MILD,
    NO_GATE,
    ONE_SIGN,
    OTHER_GATES,
    OTHER_PAPERS,
    SCREENING,
    TEMPERATURES,
)
from examples.study.questions import (
    direction,
    ingredient,
    lengths,
    map,
    mass,
    mechanism,
    mild,
    mixture,
    other_papers,
    pretrained,
    pretrained_on_gpu,
    search,
    staleness,
    step_size,
    temperatures,
)
from examples.study.report import main
from examples.study.verdicts import page, sections

RATE = 2e-4  # not the one of grid.py: the report has to take lr* from the rows
NOISE = (0.02, -0.03, 0.01, 0.0, -0.01, 0.03, -0.02, 0.015, 0.005)  # by seed
START = 0.5

Final = Callable[[int], float]


class Files:
    """Rows of made-up runs, which are written as `collect.py` writes them."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("runs.csv", "evaluations.csv", "metrics.csv.gz", "cosines.csv")
        }

    def add(
        self,
        objective: str,
        final: float | Final,
        *,
        sweep: str = "staleness",
        mu: int = 8,
        lr: float = RATE,
        seeds: int = 8,
        recipe: str = "sums",
        curve: Sequence[tuple[int, float]] = (),
        metrics: Mapping[int, Mapping[str, float]] | None = None,
    ) -> "Files":
        """Adds a cell; a number as `final` gets some noise by seed."""
        for seed in range(seeds):
            run = f"{sweep}/{recipe}/{objective}/{mu}/{lr:.3g}/{seed}"
            value = final(seed) if callable(final) else final + NOISE[seed]
            known = {"run": run, "sweep": sweep, "recipe": recipe, "objective": objective, "mu": mu, "lr": f"{lr:.3g}"}
            self.tables["runs.csv"].append(
                {**known, "seed": seed, "first": START, "final": value, "area": f"{(START + value) / 2:.4g}"}
            )
            self.tables["evaluations.csv"] += [
                {"run": run, "update": update, "pass@1": height}
                for update, height in curve or [(0, START), (96, value)]
            ]
            self.tables["metrics.csv.gz"] += [
                {"run": run, "update": update, **dict.fromkeys(METRICS, 0.0), **numbers}
                for update, numbers in (metrics or {1: {}}).items()
            ]
        return self

    def read(self, folder: Path) -> Study:
        for name, rows in self.tables.items():
            if rows:
                write_rows(folder / name, rows)
        return read_study(folder)


def search_rows(best: float = RATE) -> Files:
    files = Files()
    for place, rate in enumerate((RATE / 10, RATE / 3, RATE, 3 * RATE, 10 * RATE)):
        files.add("AtanLog", 0.9 if rate == best else 0.6 + 0.01 * place, sweep="search", mu=1, lr=rate, seeds=3)
    return files


def both_forms(gate_finals: Mapping[str, tuple[float, float]], *, seeds: int = 8) -> Files:
    """Makes the staleness cells; gate -> (two-sided, one-sided) final, and 0.8 for both of the others."""
    files = search_rows()
    for gate in GATES:
        for factor in (1, 3) if gate.core else (1,):
            finals = gate_finals.get(gate.name, (0.8, 0.8))
            for label, final in zip((gate.two_sided, gate.one_sided), finals, strict=True):
                # the noise of the two forms differs, so that equal means are not equal in each seed
                by_seed = [final + NOISE[-1 - seed if label == gate.one_sided else seed] for seed in range(8)]
                sweep = "staleness" if gate.core else "gates"
                files.add(label, by_seed.__getitem__, lr=factor * RATE, seeds=seeds, sweep=sweep)
    return files


# --- collecting


@pytest.mark.parametrize(
    ("sweep", "first", "is_kept"),
    [("mild", 0.5, True), ("mild", 0.4, False), ("search", 0.4, True), ("map 16", 0.4, True), ("map 8", 0.4, False)],
)
def test_runs_of_a_seed_have_one_start(tmp_path, monkeypatch, sweep, first, is_kept) -> None:
    """A run of an earlier collection stays only if it began at the warm start of the runs that are found."""
    row = {"recipe": "sums", "objective": "GRPO", "mu": 8, "lr": "0.0001", "final": 0.9, "area": 0.8}
    earlier = {"run": "earlier", "sweep": sweep, **row, "seed": 1, "first": first}
    other_seed = {"run": "other", "sweep": sweep, **row, "seed": 2, "first": 0.4}
    now = {"run": "now", "sweep": "staleness", **row, "seed": 1, "first": 0.5}
    write_rows(tmp_path / "runs.csv", [earlier, other_seed])
    monkeypatch.setattr(collect, "RESULTS", tmp_path)
    monkeypatch.setattr(collect, "read_finished", lambda *_: {"now": [[now], [], []]})
    assert collect.main([str(tmp_path)]) == 0
    assert [found["run"] for found in collect.read_rows(tmp_path / "runs.csv")] == [
        *(["earlier"] if is_kept else []), "now", "other"
    ]  # fmt: skip


@pytest.mark.parametrize(("final", "word"), [(0.78, "yes"), (0.5, "no")])
def test_cells_that_are_made_again(tmp_path, monkeypatch, capsys, final, word) -> None:
    Files().add("AtanLog", 0.8).read(tmp_path)
    again = {"objective": "AtanLog", "mu": 8, "lr": f"{RATE:.3g}", "recipe": "sums"}
    runs = {str(seed): [[{**again, "seed": seed, "final": final + NOISE[seed]}], [], []] for seed in range(4)}
    monkeypatch.setattr(rerun, "RESULTS", tmp_path)
    monkeypatch.setattr(rerun, "read_finished", lambda _, name, __: runs if name == "staleness" else {})
    assert rerun.main([str(tmp_path)]) == (word == "no")
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"| AtanLog | sums, μ = 8, {RATE:.3g} | 4 | ") and line.endswith(f"| {word} |")


def test_a_folder_without_cells_of_the_study_is_an_error(tmp_path, capsys) -> None:
    assert rerun.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere has no finished run of a cell that the study has" in capsys.readouterr().err


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


def test_differences_without_spread_or_seeds() -> None:
    assert statistics.paired_difference({0: 0.5}, {1: 0.5}) is None
    one = statistics.paired_difference({0: 0.5}, {0: 0.25})
    assert one is not None and one.p is None and one.estimate == statistics.Estimate(0.25)
    same = statistics.paired_difference({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5})
    assert same is not None and same.p == 1 and same.probability == 0.5


def test_holm_by_hand() -> None:
    # sorted: 0.005 × 4, 0.01 × 3, 0.03 × 2, and 0.04 × 1, which is below the last
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_wilson_by_hand() -> None:
    z, n, p = 1.959964, 8, 3 / 8
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    found = statistics.wilson(3, 8)
    assert (found.mean, found.low, found.high) == pytest.approx((p, centre - half, centre + half), abs=1e-6)


def test_a_nested_mean_has_the_spread_of_the_groups() -> None:
    """Values that differ by group only: the interval is that of the groups' means, not of six values."""
    groups = [[0.1] * 3, [0.5] * 3]
    found = statistics.nested_mean(groups)
    assert (found.mean, found.low, found.high) == pytest.approx((0.3, 0.1, 0.5))
    within = statistics.nested_mean([[0.0, 1.0] * 50])
    assert within.low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.02)


# --- cells and classes


@pytest.mark.parametrize(
    ("final", "kind"), [(0.24, "collapses"), (0.25, "stalls"), (0.59, "stalls"), (0.61, "learns"), (0.6, "learns")]
)
def test_classes(tmp_path, final, kind) -> None:
    study = Files().add("GRPO", lambda seed: final, seeds=1).read(tmp_path)
    assert [one.kind for one in study.results] == [kind]


def test_lr_is_the_largest_mean_area(tmp_path) -> None:
    study = search_rows().add("GRPO", 0.8).add("GRPO", 0.3, lr=3 * RATE).add("GRPO", 0.4, lr=RATE / 3).read(tmp_path)
    assert study.base_rates == {"sums": pytest.approx(RATE)}
    for factor, final in ((1, 0.8), (3, 0.3), (1 / 3, 0.4)):
        runs = study.runs("GRPO", study.cell(8, factor))
        assert [run.final for run in runs.values()] == pytest.approx([final + noise for noise in NOISE[:8]])
    assert "lr* = 0.0002 (sums)" in search.section(study).verdict
    assert "extended" not in str(search.section(study))


@pytest.mark.parametrize("best", [RATE / 10, 10 * RATE])
def test_lr_at_an_end_of_the_list(tmp_path, best) -> None:
    text = str(search.section(search_rows(best).read(tmp_path)))
    assert "has to be extended" in text


def test_lr_at_the_end_of_a_list_that_was_extended(tmp_path) -> None:
    files = search_rows(RATE / 10).add("AtanLog", 0.95, sweep="search", mu=1, lr=min(BEYOND.values()), seeds=3)
    text = str(search.section(files.read(tmp_path)))
    assert "was extended once" in text and "has to be" not in text


def test_runs_at_another_rate_are_named(tmp_path) -> None:
    study = search_rows().add("GRPO", 0.8, lr=5 * RATE).read(tmp_path)
    assert "learning rates 0.001 are left out" in str(search.section(study))
    assert study.runs("GRPO", study.cell(8)) == {}


def test_replay_is_a_cell_of_its_own(tmp_path) -> None:
    study = Files().add("SAPO", 0.1).add("SAPO", 0.9, sweep="replay").read(tmp_path)
    finals = [study.runs("SAPO", study.cell(8, replay=replay))[3].final for replay in (False, True)]
    assert finals == [0.1, 0.9]


# --- comparisons


def test_seven_seeds_decide_nothing(tmp_path) -> None:
    for seeds, decided in ((8, True), (7, False)):
        folder = tmp_path / str(seeds)
        folder.mkdir()
        study = Files().add("GRPO", 0.9).add("GRPO masked", 0.1, seeds=seeds).read(folder)
        (one,) = corrected([compare(study, "GRPO", "GRPO masked", study.cell(8))])
        assert one.difference is not None and one.difference.seeds == seeds
        assert (one.decided, one.word) == (decided, "decided" if decided else "not decided")


def test_comparisons_that_are_not_run_count_for_holm(tmp_path) -> None:
    study = Files().add("GRPO", 0.9).add("GRPO masked", 0.1).read(tmp_path)
    pairs = [("GRPO", "GRPO masked"), ("GSPO", "GSPO masked"), ("GMPO", "GMPO masked")]
    found = corrected([compare(study, *pair, study.cell(8)) for pair in pairs])
    assert found[0].adjusted == pytest.approx(3 * 2 / 10_001)
    assert [one.word for one in found] == ["decided", "not run", "not run"]


def test_a_small_difference_of_noise_is_not_decided(tmp_path) -> None:
    study = Files().add("GRPO", lambda seed: 0.8 + NOISE[seed]).add("GRPO masked", lambda seed: 0.8 - NOISE[seed])
    (one,) = corrected([compare(study.read(tmp_path), "GRPO", "GRPO masked", read_study(tmp_path).cell(8))])
    assert one.word == "not decided" and one.sign == 0


# --- question a


def answers(study: Study) -> dict[str, str]:
    found = staleness.comparisons(study)
    return {gate.name: staleness.verdict([one for _, one in found[gate]]) for gate in GATES}


def test_yes_in_general_needs_six_soft_and_two_hard_gates(tmp_path) -> None:
    soft, hard = [gate.name for gate in SOFT], [gate.name for gate in HARD]
    collapsed = (0.1, 0.9)
    for names, word in (
        ([*soft[:6], *hard[:2]], "yes"),
        ([*soft[:6], *hard[:1]], "mixed"),
        ([*soft[:5], *hard], "mixed"),
        ([*soft[:5]], "no"),
    ):
        folder = tmp_path / f"{len(names)}{word}"
        folder.mkdir()
        study = both_forms(dict.fromkeys(names, collapsed)).read(folder)
        assert {name for name, answer in answers(study).items() if answer == "yes"} == set(names)
        assert staleness.section(study).verdict.startswith(f"{word} (")


def test_a_gate_that_is_worse_in_one_cell_is_no(tmp_path) -> None:
    files = search_rows().add("SAPO", 0.1).add("SAPO one-sided", 0.9)
    study = files.add("SAPO", 0.9, lr=3 * RATE).add("SAPO one-sided", 0.6, lr=3 * RATE).read(tmp_path)
    assert answers(study)["SAPO"] == "no"


def test_a_gate_with_a_missing_cell_is_open(tmp_path) -> None:
    study = search_rows().add("SAPO", 0.1).add("SAPO one-sided", 0.9).read(tmp_path)
    assert answers(study)["SAPO"] == "not decided"
    assert answers(study)["GRPO"] == "not run"
    assert staleness.section(study).verdict.startswith("not run")


def test_seven_seeds_leave_question_a_open(tmp_path) -> None:
    study = both_forms({gate.name: (0.1, 0.9) for gate in GATES}, seeds=7).read(tmp_path)
    assert set(answers(study).values()) == {"not decided"}
    assert "7/7: 1.00 (0.65 to 1.00)" in str(staleness.section(study))


# --- question b


@pytest.mark.parametrize(
    ("positive", "negative", "word"), [(0.3, 0.6, "for"), (0.95, 0.6, "against"), (0.1, 0.1, "against")]
)
def test_ingredient(tmp_path, positive, negative, word) -> None:
    files = Files().add("AtanLog", 0.1).add("AtanLog one-sided", 0.9)
    for label, final in zip(ONE_SIGN, (positive, negative), strict=True):
        files.add(label, final, sweep="gates")
    assert ingredient.observe(files.read(tmp_path)).verdict == word


@pytest.mark.parametrize(("rise", "word"), [(20, "for (1 "), (30, "against (1 "), (None, "against (1 ")])
def test_mass(tmp_path, rise, word) -> None:
    numbers = {
        update: {
            "against": 0.1,
            "below_half_positive_below": 0.02 if rise and update >= rise else 0.005,
            "below_half_negative_above": 0.03 if rise and update >= rise else 0.005,  # 1 % is not over 1 %
        }
        for update in (10, 20, 30)
    }
    curve = [(0, START), (12, START), (24, 0.4)]
    files = Files().add("AtanLog", 0.1, curve=curve, metrics=numbers)
    study = files.add("AtanLog one-sided", 0.9, metrics={update: {"against": 0.1} for update in numbers}).read(tmp_path)
    section = mass.observe(study)
    assert section.verdict.startswith(word)
    if rise:
        row = next(line for line in str(section).splitlines() if line.startswith("| AtanLog | μ = 8, lr"))
        assert "| 0.50 | 0.00 |" in row  # (2 % + 3 %) of 10 %


def test_mass_needs_a_fall(tmp_path) -> None:
    curve = [(0, START), (12, 0.9)]
    study = Files().add("AtanLog", 0.9, curve=curve, metrics={1: {"below_half_positive_below": 0.5}}).read(tmp_path)
    assert mass.observe(study).verdict == "not decided"


@pytest.mark.parametrize(("advantage", "word"), [(0.1, "for (11 of 11"), (0.0, "against (11 of 11")])
def test_direction(tmp_path, advantage, word) -> None:
    files = Files()
    for run in ("mechanism-0", "mechanism-1"):
        for cycle in (0, 2, 4):
            for gate in GATES:
                for k in (0, 1, 7):
                    noise = 0.01 * (cycle - 2)
                    pair = ((gate.two_sided, 0.5), (gate.one_sided, 0.5 + noise + (advantage if k else 9)))
                    files.tables["cosines.csv"] += [
                        {"run": run, "cycle": cycle, "stale": k, "objective": label, "cosine": value}
                        for label, value in pair
                    ]
    assert direction.observe(files.read(tmp_path)).verdict.startswith(word)


@pytest.mark.parametrize(("smallest", "word"), [(0.7, "for (1 of 5"), (0.95, "against (1 of 5"), (0.1, "for (1 of 5")])
def test_step_size(tmp_path, smallest, word) -> None:
    files = search_rows()
    for factor, two, one in ((1 / 3, smallest, 0.6), (1, 0.2, 0.9), (3, 0.1, 0.5)):
        files.add("SAPO", two, lr=factor * RATE).add("SAPO one-sided", one, lr=factor * RATE)
    section = step_size.observe(files.read(tmp_path))
    assert section.verdict.startswith(word)
    assert "0.70 at lr" in str(section)  # (0.5 + 0.9) / 2: the best area of the one-sided form


@pytest.mark.parametrize(
    ("gain", "spread", "seeds", "said"),
    [
        (0.10, 0.01, 8, "it matters"),
        (0.01, 0.01, 8, "it does not matter"),
        (-0.10, 0.01, 8, "open"),  # the two-sided form is better
        (0.10, 0.30, 8, "open"),
        (0.10, 0.01, 7, "not decided"),
    ],
)
def test_the_side_of_a_gate_where_the_learning_rate_is_chosen(tmp_path, gain, spread, seeds, said) -> None:
    """Each form is at its best learning rate: the two-sided one at a third of lr*, the one-sided one at lr*."""
    files = search_rows()
    for factor, two, one in ((1 / 3, 0.6, 0.5), (1, 0.4, 0.6 + gain), (3, 0.1, 0.1)):
        files.add("SAPO", two, lr=factor * RATE, seeds=seeds)
        finals = {seed: one + spread * (-1) ** seed for seed in range(seeds)}
        files.add("SAPO one-sided", finals.__getitem__, lr=factor * RATE, seeds=seeds)
    body = str(step_size.observe(files.read(tmp_path)))
    line = next(line for line in reversed(body.splitlines()) if line.startswith("| SAPO |"))
    assert line.endswith(f"| {said} |"), line


def test_the_interval_of_t_by_hand() -> None:
    found = statistics.t_interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.low is not None and found.high is not None
    assert (found.low, found.high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-6)


# --- questions c to g


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((0.9, 0.6), (0.8, 0.8), "decided, τ_neg > τ_pos is better"),
        ((0.6, 0.9), (0.6, 0.9), "decided, τ_neg < τ_pos is better"),
        ((0.9, 0.6), (0.6, 0.9), "not decided, no difference found"),
        ((0.8, 0.8), (0.8, 0.8), "not decided, no difference found"),
    ],
)
def test_temperatures(tmp_path, first, second, verdict) -> None:
    files = Files()
    labels = ("AtanLog", "AtanLog(0.2, 0.3)", "AtanLog(0.6, 0.5)", "AtanLog(0.5, 0.6)")
    for label, final in zip(labels, (*first, *second), strict=True):
        files.add(label, final)
    section = temperatures.section(files.read(tmp_path))
    assert section.verdict == f"two-sided: {verdict}; one-sided: not run"


def test_every_temperature_has_a_label_of_the_grid() -> None:
    labels = {temperatures.label(taus, form) for taus in temperatures.TAUS for form in temperatures.FORMS}
    assert labels == {*TEMPERATURES, "AtanLog", "AtanLog one-sided"}


def mild_runs(sspo: tuple[float, float], other: tuple[float, float]) -> Files:
    files = Files()
    for mu, ours, theirs in zip((2, 4), sspo, other, strict=True):
        files.add("AtanLog", ours, sweep="mild", mu=mu).add("GRPO", theirs, sweep="mild", mu=mu)
    return files


@pytest.mark.parametrize(
    ("sspo", "word"), [((0.9, 0.7), "yes"), ((0.7, 0.7), "no"), ((0.9, 0.5), "mixed"), ((0.7, 0.5), "no")]
)
def test_mild(tmp_path, sspo, word) -> None:
    found = mild.comparisons(mild_runs(sspo, (0.7, 0.7)).read(tmp_path))
    assert len(found) == 24
    assert mild.better([one for one in found if one.second == "GRPO"]) == word
    assert mild.better([one for one in found if one.second == "SAPO"]) == "not run"


def test_entropy_is_that_of_the_first_evaluation_with_the_skill(tmp_path) -> None:
    curve = [(0, START), (12, 0.79), (24, 0.8), (36, 0.9)]
    metrics = {update: {"entropy": update / 100} for update in range(1, 37)}
    study = Files().add("GRPO", 0.9, mu=2, curve=curve, metrics=metrics).add("SAPO", 0.7, mu=2).read(tmp_path)
    assert mild.entropy_at_skill(study, "GRPO", study.cell(2)) == dict.fromkeys(range(8), 0.24)
    assert mild.entropy_at_skill(study, "SAPO", study.cell(2)) == {}  # never reaches it


@pytest.mark.parametrize(("long", "word"), [((0.9, 0.6), "no"), ((0.6, 0.9), "yes"), ((0.8, 0.8), "not decided")])
def test_lengths(tmp_path, long, word) -> None:
    files = Files().add("GSPO", 0.9).add("GRPO", 0.7)
    for label, final in zip(("GSPO", "GRPO"), long, strict=True):
        files.add(label, final, sweep="lengths", recipe=LONG_SUMS, lr=1e-3)
    found = lengths.comparisons(files.read(tmp_path))
    assert [lengths.changes(pair) for pair in found] == [word, "not run", "not run"]


@pytest.mark.parametrize(
    ("collapsed", "dense", "word"),
    [(8, 0.9, "yes"), (0, 0.9, "no"), (8, 0.2, "no")],
)
def test_mixture(tmp_path, collapsed, dense, word) -> None:
    files = Files().add("SAPO", lambda seed: 0.1 if seed < collapsed else 0.8)
    study = files.add("SAPO", dense, recipe=DENSE_SUMS, sweep="dense").read(tmp_path)
    assert f"| SAPO | {word} | not run |" in str(mixture.section(study))


def test_half_of_the_collapses_is_enough(tmp_path) -> None:
    for kept, word in ((4, "yes"), (5, "no")):
        folder = tmp_path / word
        folder.mkdir()
        files = Files().add("AtanLog", 0.05)
        files.add("AtanLog", lambda seed, kept=kept: 0.2 if seed < kept else 0.9, sweep="replay")
        assert f"| AtanLog | not run | {word} |" in str(mixture.section(files.read(folder)))


def test_map(tmp_path) -> None:
    files = search_rows().add("SAPO", lambda seed: (0.1, 0.9, 0.9)[seed], sweep="map 16", mu=16, seeds=3)
    study = files.read(tmp_path)
    line = next(line for line in str(map.section(study)).splitlines() if line.startswith("| SAPO |"))
    assert line.endswith("| not run · 0.50 CL · not run |")  # the map has two seeds
    assert "0.90 LL" in line.split("|")[2]  # μ = 1: the search's runs


# --- the page


# --- question h


def screened(finals: Mapping[str, float]) -> Files:
    """Makes the screening; label -> final, and 0.5 for the others."""
    files = search_rows()
    for label in OTHER_PAPERS:
        for factor in (1, 3):
            files.add(label, finals.get(label, 0.5), sweep=SCREENING, lr=factor * RATE, seeds=2)
    return files


def test_the_six_best_go_on(tmp_path) -> None:
    files = screened({"VESPO": 0.9, "CISPO": 0.8, "DAPO": 0.4})
    # among equals, those that come first in grid.py
    assert screening.chosen(files.read(tmp_path)) == ["VESPO", "CISPO", "Dr. GRPO", "dual clip", "Scopic", "PSPO"]
    files.tables["runs.csv"].pop()
    assert screening.chosen(files.read(tmp_path)) == []
    assert other_papers.section(files.read(tmp_path)).verdict == "not run: the screening is not complete"


@pytest.mark.parametrize(
    ("stale", "mild_final", "word"), [(0.9, 0.7, "1 of 6"), (0.9, 0.2, "0 of 6"), (0.7, 0.7, "0 of 6")]
)
def test_other_papers(tmp_path, stale, mild_final, word) -> None:
    files = screened({"VESPO": 0.9})
    for label in ("GRPO", "AtanLog one-sided", *screening.chosen(files.read(tmp_path))):
        final = stale if label == "VESPO" else 0.7
        for mu, factor in ((8, 1), (8, 3), (2, 1), (4, 1)):
            by_seed = [
                (mild_final if label == "VESPO" and mu < 8 else final) + NOISE[-1 - seed if label == "VESPO" else seed]
                for seed in range(8)
            ]
            files.add(label, by_seed.__getitem__, sweep="other papers", mu=mu, lr=factor * RATE)
    section = other_papers.section(files.read(tmp_path))
    assert section.verdict == f"better than GRPO: {word}; better than AtanLog one-sided: {word}"


@pytest.mark.parametrize(
    ("two_sided", "one_sided", "seeds", "word"),
    [
        ((0.7, 0.1), (0.7, 0.6), 2, "yes"),
        ((0.3, 0.4), (0.7, 0.6), 2, "not decided"),  # by less than at the smaller rate
        ((0.7, 0.6), (0.7, 0.1), 2, "no"),
        ((0.7, 0.1), (0.7, 0.6), 1, "not run"),
    ],
)
def test_the_forms_on_a_pretrained_model(tmp_path, two_sided, one_sided, seeds, word) -> None:
    files = search_rows()
    for factor, *finals in zip((1, 3), two_sided, one_sided, strict=True):
        for label, final in zip(("AtanLog", "AtanLog one-sided"), finals, strict=True):
            files.add(
                label, final, sweep="pretrained", recipe=PRETRAINED_SUMS, lr=5e-6 * factor, mu=8, seeds=seeds
            )  # fmt: skip
    section = pretrained.section(files.read(tmp_path))
    assert section.verdict == f"the forms part: {word}"
    assert "μ = 8, lr = 5e-06" in section.body[1] and "μ = 8, 3 lr = 1.5e-05" in section.body[1]


def test_the_forms_part_in_each_seed(tmp_path) -> None:
    files = Files()
    for label, at_large in (("AtanLog", (0.5, 0.5)), ("AtanLog one-sided", (0.6, 0.4))):
        files.add(label, 0.7, sweep="pretrained", recipe=PRETRAINED_SUMS, lr=5e-6, seeds=2)
        files.add(label, at_large.__getitem__, sweep="pretrained", recipe=PRETRAINED_SUMS, lr=1.5e-5, seeds=2)
    assert pretrained.section(files.read(tmp_path)).verdict == "the forms part: not decided"


@pytest.mark.parametrize(
    ("at_small", "at_large", "seeds", "word"),
    [
        (0.0, 0.3, (8, 8), "yes"),
        (0.0, 0.3, (3, 8), "yes (with 3 seeds at the smaller rate)"),
        (0.4, 0.3, (8, 8), "not decided"),  # by less than at the smaller rate
        (0.0, -0.3, (8, 8), "no"),
        (0.0, 0.0, (8, 8), "not decided"),
        (0.0, 0.3, (8, 7), "not run"),
    ],
)
def test_the_forms_on_a_gpu(tmp_path, at_small, at_large, seeds, word) -> None:
    files = Files()
    for factor, above, count in ((1, at_small, seeds[0]), (3, at_large, seeds[1])):
        for label, final in (("AtanLog", 0.5), ("AtanLog one-sided", 0.5 + above)):
            by_seed = [final + 0.001 * (seed - (count - 1) / 2) * (label == "AtanLog") for seed in range(count)]
            files.add(
                label, by_seed.__getitem__, sweep="pretrained on a GPU", recipe=PRETRAINED_SUMS_ON_GPU,
                lr=5e-6 * factor, mu=8, seeds=count,
            )  # fmt: skip
    section = pretrained_on_gpu.section(files.read(tmp_path))
    assert section.verdict == f"the forms part: {word}"
    assert "μ = 1, 10 lr = 5e-05 | AtanLog | – | – | – | – | not run |" in section.body[1]


def test_nothing_was_run(tmp_path) -> None:
    study = read_study(tmp_path)
    text = page(study, sections(study), {}, "")
    assert "`runs.csv`, `evaluations.csv`, `metrics.csv.gz`, `cosines.csv`" in text
    assert "decided |" not in text and "| yes |" not in text


def test_every_label_is_one_of_the_grid() -> None:
    known = {*CORE, *NO_GATE, *OTHER_GATES, *ONE_SIGN}
    used = {label for gate in GATES for label in (gate.two_sided, gate.one_sided)}
    used |= {*map.OBJECTIVES, *mixture.OBJECTIVES, *(label for pair in lengths.PAIRS for label in pair)}
    assert used <= known
    assert {mild.SSPO, *mild.OTHERS} <= set(MILD)


def test_every_question_of_the_page_is_answered(tmp_path) -> None:
    questions = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    study = read_study(tmp_path)
    for section in sections(study)[1:]:
        assert f"**{section.title.rstrip('.')}" in " ".join(questions.split()), section.title
    assert mechanism.section(study).verdict.count("not run") == 4


# --- figures and the command


def test_figures_of_runs_that_are_there(tmp_path) -> None:
    """Draws what was run, and removes the pictures of an earlier report."""
    (tmp_path / "map.png").write_bytes(b"of an earlier report")
    files = Files().add("AtanLog", 0.1, seeds=2).add("AtanLog one-sided", 0.9, seeds=1)
    undrawn = draw(files.read(tmp_path), tmp_path)
    assert set(undrawn) == {
        "map.png", "temperatures.png", "mild.png", "lengths.png", "replay.png", "pretrained.png"
    }  # fmt: skip
    assert {path.name for path in tmp_path.glob("*.png")} == DRAWINGS.keys() - undrawn.keys()
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_other_figures(tmp_path) -> None:
    files = search_rows().add("GRPO", 0.9, sweep="mild", mu=2).add("GRPO", 0.4, sweep="map 16", mu=16, seeds=2)
    files.add("AtanLog(0.2, 0.3)", 0.9, sweep="temperatures", seeds=2).add("SAPO", 0.9, sweep="replay")
    files.add("SAPO", 0.9, sweep="lengths", recipe=LONG_SUMS)
    files.add("SAPO", 0.9, sweep="pretrained on a GPU", recipe=PRETRAINED_SUMS_ON_GPU, lr=5e-6, seeds=2)
    undrawn = draw(files.read(tmp_path), tmp_path)
    assert set(undrawn) == {"staleness.png", "gates.png", "mechanism.png"}


@pytest.mark.parametrize("kept", ["", "runs.csv", "evaluations.csv", "metrics.csv.gz", "cosines.csv"])
def test_a_report_of_one_file_alone(tmp_path, capsys, kept) -> None:
    files = search_rows().add("GRPO", 0.9)
    files.tables["cosines.csv"].append({"run": "a", "cycle": 0, "stale": 0, "objective": "GRPO", "cosine": 0.5})
    files.tables = {name: rows for name, rows in files.tables.items() if name == kept}
    files.tables.setdefault("runs.csv", [])
    files.read(tmp_path)
    assert main(["--results", str(tmp_path), "--output", str(tmp_path / "out" / "study"), "--commit", "abc1234"]) == 0
    text = (tmp_path / "out" / "study" / "verdicts.md").read_text(encoding="utf-8")
    assert "abc1234" in text and f"`{kept}`" not in text.split("Figures")[0].split("Not run")[1]
    assert "verdicts.md is in" in capsys.readouterr().out


@pytest.mark.parametrize("sweep", ["search", "map 2 and 4", "replay", "temperatures"])
def test_a_report_of_one_sweep_alone(tmp_path, sweep) -> None:
    files = Files().add("AtanLog", 0.9, sweep=sweep, seeds=2)
    files.read(tmp_path)
    assert main(["--results", str(tmp_path), "--output", str(tmp_path)]) == 0


# --- objections


def test_numbers_of_the_objections(tmp_path) -> None:
    """One gate collapses at the ends of its cycles, where its drift is larger and its gradient smaller."""
    metrics = {
        update: {
            "reward": 0.5,
            "kl_old": 0.1,
            "grad_norm": 2.0 if update == 1 else 0.25,
            "below_half_positive_below": 0.02,
        }
        for update in (1, 8, 89)
    }
    calm = {update: {**numbers, "kl_old": 0.01, "grad_norm": 0.5} for update, numbers in metrics.items()}
    heights = (0.5, 0.3, 0.3, 0.4, 0.2, 0.4, 0.2, 0.4)
    low = [*zip(range(0, 96, 12), heights, strict=True), (96, 0.1)]
    high = [(update, 0.5 if update == 0 else 0.9) for update in range(0, 97, 12)]
    files = search_rows()
    for factor in (1, 3):
        files.add("GRPO masked", 0.1, lr=factor * RATE, curve=low, metrics=metrics)
        files.add("GRPO", 0.9, lr=factor * RATE, curve=high, metrics=calm)
    study = files.read(tmp_path)
    first = next(iter(objections.differences(study)))
    assert first.startswith("1 lr*  GRPO: final +0.800 (8+ of 8)") and "middles +0.500 (8+ of 8)" in first
    assert list(objections.classes(study)) == [
        f"{factor} lr*, {form}: 8 runs, {counts}"
        for factor in (1, 3)
        for form, counts in (
            ("two-sided", "8 collapse, 8 end below their start, 0 learn, 8 are never 0.10 above their start"),
            ("one-sided", "0 collapse, 0 end below their start, 8 learn, 0 are never 0.10 above their start"),
        )
    ]
    assert next(iter(objections.end_minus_middle(study))) == "1 lr*, two-sided: -0.233 over 8 runs"
    assert next(iter(objections.drift(study))) == "4 cells: rank correlation of drift and final -1.00"
    assert next(iter(objections.rise_and_fall(study))).endswith(
        "8 rise, the last at update 1; 8 fall, the first at update 12"
    )
    assert next(iter(objections.norms(study))).endswith(
        "33.3% above 1; 1.12 in the first update of a cycle, 0.25 in the last"
    )
    assert objections.first_cycle(study) == "1 for each seed and update"


def test_the_percentile_rule_decides_too_often() -> None:
    """Checks the rates for eight normal values, with those of a paired t-test."""
    alone, _ = objections.simulated_errors(trials=200)
    found = [float(part) for part in re.findall(r"\d\.\d\d", alone)]
    assert 0.05 < found[0] < 0.2 and found[1] < 0.1
    assert 0.3 < found[2] < 0.6 and found[3] < 0.1


def test_a_t_test_beside_the_percentile_value() -> None:
    values = {seed: 0.1 + noise for seed, noise in enumerate(NOISE[:8])}
    found = statistics.paired_difference(values, dict.fromkeys(values, 0.0))
    assert found is not None and found.p_t == pytest.approx(ttest_1samp(list(values.values()), 0)[1])
    assert statistics.t_test_p([0.1, 0.1]) is None and statistics.t_test_p([0.1]) is None
